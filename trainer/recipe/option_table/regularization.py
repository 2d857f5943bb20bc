"""The optimizer and what keeps weights small."""

from __future__ import annotations

from trainer.recipe.option_table.row import Option, group, option

OPTIONS: tuple[Option, ...] = group(
    "regularization",
    option("--attention-dropout", float, 0.1, "Dropout of the attention's probabilities.", at_least=0, below=1),
    option("--hidden-dropout", float, 0.1, "Dropout of embeddings, attention and MLP outputs.", at_least=0, below=1),
    option(
        "--weight-decay",
        float,
        0.01,
        "Weight decay, with adam decoupled; none on biases and LayerNorms.",
        at_least=0,
    ),
    option("--clip-grad", float, 1.0, "Largest norm of the gradient; 0 clips nothing.", at_least=0),
    option("--optimizer", str, "adam", "AdamW, or SGD with momentum.", choices=("adam", "sgd")),
    option("--adam-beta1", float, 0.9, "Adam's decay of the first moment.", at_least=0, below=1),
    option("--adam-beta2", float, 0.999, "Adam's decay of the second moment.", at_least=0, below=1),
    option("--adam-eps", float, 1e-8, "Added to Adam's denominator.", at_least=0),
    option("--sgd-momentum", float, 0.9, "SGD's momentum.", at_least=0, below=1),
)
