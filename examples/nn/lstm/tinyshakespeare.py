"""A character-level LSTM on TinyShakespeare: 2 layers of width 256, 64 characters at a time.

    make lstm        or        python examples/nn/lstm/tinyshakespeare.py [--quick] [--seed 0] [--device auto]

Prints the validation loss and a sample; with matplotlib the curve is drawn into the run's folder.
"""

import argparse

from noeira.nn import LSTMLM, AdamW, AutoregressiveTrainer, LSTMConfig, TinyShakespeare, WarmupCosine, generate

BLOCK = 64


def main() -> None:
    """Train, evaluate, sample."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="200 iterations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    iterations = 200 if args.quick else args.iterations

    text = TinyShakespeare()  # 1.1 million ids of 65 characters: nine tenths to train on, the rest to validate on
    model = LSTMLM.from_config(LSTMConfig.char(text.tokenizer.vocab_size))
    schedule = WarmupCosine(warmup=min(100, iterations // 2), minimum=0.1, per="step")
    optimizer = AdamW(2e-3, betas=(0.9, 0.99), weight_decay=0.01, clip_norm=1.0, schedule=schedule)
    trainer = AutoregressiveTrainer(
        model, optimizer, block_size=BLOCK, batch_size=32, seed=args.seed, device=args.device
    )
    history = trainer.fit(text.train, text.val, iterations=iterations)

    def show(token: int) -> None:
        print(text.tokenizer.decode([token]), end="", flush=True)

    generate(model, text.tokenizer.encode("\n"), 300, block_size=BLOCK, temperature=0.8, seed=args.seed, on_token=show)
    print(f"\n\nvalidation loss {history.val_loss:.4f} after {history.seconds:.1f} s of training")


if __name__ == "__main__":
    main()
