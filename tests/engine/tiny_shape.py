"""The shape of the tiny random decoders that models' tests are made of."""

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    # Larger than usual: outputs must depend on the mask, or negative controls would prove nothing.
    "initializer_range": 0.2,
}
