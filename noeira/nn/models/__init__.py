"""Models, made of the layers and combinators."""

from noeira.nn.models.conditional import ConditionalTransformerBlock
from noeira.nn.models.conv import (
    CIFARFeatureNet,
    Conv2DBatchNorm,
    Conv2DBatchNormReLU,
    Conv2DReLU,
    ConvNet,
    ConvNetConfig,
)
from noeira.nn.models.decoder import DecoderBlock, MultiHeadCrossAttention
from noeira.nn.models.generation import Generator, generate
from noeira.nn.models.gpt import GPT, GPTConfig
from noeira.nn.models.llama import GroupedQueryAttention, Llama, LlamaBlock, LlamaConfig
from noeira.nn.models.lstm import LSTMLM, LSTMConfig
from noeira.nn.models.resnet import BasicBlock, ResNet, ResNetConfig
from noeira.nn.models.time_attention import TimeAttentionLatents
from noeira.nn.models.transformer import MultiHeadAttention, TransformerBlock, TransformerFFN
from noeira.nn.models.vit import PatchEmbed, ViT, ViTConfig

__all__ = [
    "GPT",
    "LSTMLM",
    "BasicBlock",
    "CIFARFeatureNet",
    "ConditionalTransformerBlock",
    "Conv2DBatchNorm",
    "Conv2DBatchNormReLU",
    "Conv2DReLU",
    "ConvNet",
    "ConvNetConfig",
    "DecoderBlock",
    "GPTConfig",
    "Generator",
    "GroupedQueryAttention",
    "LSTMConfig",
    "Llama",
    "LlamaBlock",
    "LlamaConfig",
    "MultiHeadAttention",
    "MultiHeadCrossAttention",
    "PatchEmbed",
    "ResNet",
    "ResNetConfig",
    "TimeAttentionLatents",
    "TransformerBlock",
    "TransformerFFN",
    "ViT",
    "ViTConfig",
    "generate",
]
