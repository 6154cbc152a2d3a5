"""Models, made of the layers and combinators."""

from noeira.nn.models.conditional import ConditionalTransformerBlock
from noeira.nn.models.decoder import DecoderBlock, MultiHeadCrossAttention
from noeira.nn.models.generation import generate
from noeira.nn.models.gpt import GPT, GPTConfig
from noeira.nn.models.time_attention import TimeAttentionLatents
from noeira.nn.models.transformer import MultiHeadAttention, TransformerBlock, TransformerFFN

__all__ = [
    "GPT",
    "ConditionalTransformerBlock",
    "DecoderBlock",
    "GPTConfig",
    "MultiHeadAttention",
    "MultiHeadCrossAttention",
    "TimeAttentionLatents",
    "TransformerBlock",
    "TransformerFFN",
    "generate",
]
