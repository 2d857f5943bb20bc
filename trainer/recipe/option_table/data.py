"""What is trained on, and how its text became tokens."""

from __future__ import annotations

from trainer.recipe.option_table.row import Option, flag, group, option

_MAPPED = "data files are always mapped, and read as they are needed"

OPTIONS: tuple[Option, ...] = group(
    "data",
    option("--data-path", str, None, "One data prefix, or WEIGHT PREFIX WEIGHT PREFIX ...", nargs="+"),
    option("--split", str, "969, 30, 1", "Shares of train, validation and test documents."),
    option("--train-weighted-split-paths", str, None, 'One group, "NAME: WEIGHT START:END PREFIX, ...".', nargs="+"),
    option("--valid-weighted-split-paths", str, None, "The same, one group per validation set.", nargs="+"),
    option("--test-weighted-split-paths", str, None, "The same, one group per test set.", nargs="+"),
    option("--train-weighted-split-paths-path", str, None, "A file with the training groups."),
    option("--valid-weighted-split-paths-path", str, None, "A file with the validation groups."),
    option("--test-weighted-split-paths-path", str, None, "A file with the test groups."),
    option("--data-impl", str, "infer", "How data files are read.", choices=("infer", "mmap"), notice=_MAPPED),
    option("--data-cache-path", str, None, "Folder of the sample-order files; beside the data when not given."),
    option(
        "--data-node-cache-path",
        str,
        None,
        "Folder on each node's own disk for copies of indices and orders; $VARIABLES are the node's.",
    ),
    option(
        "--separate-last-epoch-threshold",
        float,
        0.80,
        "Shuffle the last epoch apart below this share of a full one's samples; BigScience's was 0.95.",
        at_least=0,
    ),
    option(
        "--dataloader-type",
        str,
        "single",
        "Samples in the order of the seed.",
        choices=("single",),
        notice="there is no other order",
    ),
    option(
        "--num-workers", int, 0, "Threads per rank that read training data ahead; 0: no need.", at_least=0, below=10_000
    ),
    option(
        "--valid-num-workers", int, 0, "Threads per rank that read validation data ahead.", at_least=0, below=10_000
    ),
    option(
        "--tokenizer-type",
        str,
        None,
        "Vocabulary and merges, a Hugging Face name or folder, or a tokenizer.json; by what is given.",
        choices=("GPT2BPETokenizer", "PretrainedFromHF", "TokenizerFile"),
    ),
    option("--tokenizer-name-or-path", str, None, "The tokenizer's name, folder or tokenizer.json."),
    option("--vocab-file", str, None, "GPT-2's vocab.json."),
    option("--merge-file", str, None, "GPT-2's merges.txt."),
    option(
        "--vocab-size",
        int,
        None,
        "Size of the vocabulary before padding, instead of asking a tokenizer.",
        unit="tokens",
        at_least=1,
        below=2**31,
    ),
    flag("--eod-mask-loss", "No loss where the input is the end-of-document token."),
    flag("--mmap-warmup", "Read data files once before training.", notice=_MAPPED),
    table="data",
)
