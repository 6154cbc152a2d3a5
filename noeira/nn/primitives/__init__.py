"""Leaf layers, one family a file."""

from noeira.nn.primitives.activation import GELU, Activation, Mish, ReLU, Sigmoid, SiLU, Swish, Tanh
from noeira.nn.primitives.arithmetic import Add, Divide, Multiply, Subtract
from noeira.nn.primitives.attention import (
    CrossAttention,
    MaskedAttention,
    ScaledDotProductAttention,
    SelfAttentionPos,
    SelfAttentionPosMasked,
    all_allow_mask,
    build_modality_mask,
    causal_mask,
)
from noeira.nn.primitives.batch_norm import BatchNorm, BatchNorm1D, BatchNorm2D, BatchNorm2DAct
from noeira.nn.primitives.block_linear import BlockLinear
from noeira.nn.primitives.conv import Conv1D, Conv2D, Conv2DTranspose
from noeira.nn.primitives.dropout import Dropout, HashDropout
from noeira.nn.primitives.dueling import DuelingHead, DuelingHeadC51
from noeira.nn.primitives.elementwise import (
    ELU,
    BinaryElementwise,
    CenterHalf,
    Clamp,
    Elementwise,
    Formula,
    GradGate,
    LeakyReLU,
    Scale,
    Softplus,
    StopGrad,
    Symexp,
    Symlog,
)
from noeira.nn.primitives.embedding import Embedding, PositionEmbedding
from noeira.nn.primitives.layout import Flatten, PixelShuffle, ToNCHW, Transpose2D, Upsample2x
from noeira.nn.primitives.linear import (
    Linear,
    LinearAct,
    LinearGELU,
    LinearMish,
    LinearReLU,
    LinearSigmoid,
    LinearSwish,
    LinearTanh,
)
from noeira.nn.primitives.linear_pieces import FeedForwardGELU, TiedLinear, ZeroLinear
from noeira.nn.primitives.noisy import NoisyLinear
from noeira.nn.primitives.norm import (
    ConvRMSNorm,
    GroupNorm,
    LayerNorm,
    LayerNormAct,
    LayerNormNoAffine,
    MinMaxNorm,
    RMSNorm,
    SimNorm,
)
from noeira.nn.primitives.per_sample import L1MaskedPerSample, MSEPerSample
from noeira.nn.primitives.pieces import Concat, GatherActionSlice, GatherCols, Slice
from noeira.nn.primitives.pool import AdaptiveAvgPool2D, AvgPool2D, MaxPool2D
from noeira.nn.primitives.recurrence import GRUCell, GRUSeq, LSTMCell, LSTMSeq
from noeira.nn.primitives.reduce import PairwiseDot, Reduce, ReduceMax
from noeira.nn.primitives.rope import QKVToMajor, RepeatKVHeads, RoPE
from noeira.nn.primitives.sampling import GaussianVAE, RSample
from noeira.nn.primitives.sigreg import SIGReg
from noeira.nn.primitives.softmax import LogSoftmax, Softmax
from noeira.nn.primitives.space_time import DynamicsSpaceAttention, ModalitySpaceAttention, SpaceTimeTranspose
from noeira.nn.primitives.transformer import BiasAdd, Gate, Modulate, SinusoidalPosAdd, SwiGLU, TokenMean

__all__ = [
    "ELU",
    "GELU",
    "Activation",
    "AdaptiveAvgPool2D",
    "Add",
    "AvgPool2D",
    "BatchNorm",
    "BatchNorm1D",
    "BatchNorm2D",
    "BatchNorm2DAct",
    "BiasAdd",
    "BinaryElementwise",
    "BlockLinear",
    "CenterHalf",
    "Clamp",
    "Concat",
    "Conv1D",
    "Conv2D",
    "Conv2DTranspose",
    "ConvRMSNorm",
    "CrossAttention",
    "Divide",
    "Dropout",
    "DuelingHead",
    "DuelingHeadC51",
    "DynamicsSpaceAttention",
    "Elementwise",
    "Embedding",
    "FeedForwardGELU",
    "Flatten",
    "Formula",
    "GRUCell",
    "GRUSeq",
    "Gate",
    "GatherActionSlice",
    "GatherCols",
    "GaussianVAE",
    "GradGate",
    "GroupNorm",
    "HashDropout",
    "L1MaskedPerSample",
    "LSTMCell",
    "LSTMSeq",
    "LayerNorm",
    "LayerNormAct",
    "LayerNormNoAffine",
    "LeakyReLU",
    "Linear",
    "LinearAct",
    "LinearGELU",
    "LinearMish",
    "LinearReLU",
    "LinearSigmoid",
    "LinearSwish",
    "LinearTanh",
    "LogSoftmax",
    "MSEPerSample",
    "MaskedAttention",
    "MaxPool2D",
    "MinMaxNorm",
    "Mish",
    "ModalitySpaceAttention",
    "Modulate",
    "Multiply",
    "NoisyLinear",
    "PairwiseDot",
    "PixelShuffle",
    "PositionEmbedding",
    "QKVToMajor",
    "RMSNorm",
    "RSample",
    "ReLU",
    "Reduce",
    "ReduceMax",
    "RepeatKVHeads",
    "RoPE",
    "SIGReg",
    "Scale",
    "ScaledDotProductAttention",
    "SelfAttentionPos",
    "SelfAttentionPosMasked",
    "SiLU",
    "Sigmoid",
    "SimNorm",
    "SinusoidalPosAdd",
    "Slice",
    "Softmax",
    "Softplus",
    "SpaceTimeTranspose",
    "StopGrad",
    "Subtract",
    "SwiGLU",
    "Swish",
    "Symexp",
    "Symlog",
    "Tanh",
    "TiedLinear",
    "ToNCHW",
    "TokenMean",
    "Transpose2D",
    "Upsample2x",
    "ZeroLinear",
    "all_allow_mask",
    "build_modality_mask",
    "causal_mask",
]
