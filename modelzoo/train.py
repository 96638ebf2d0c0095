"""Trains a model, `python -m modelzoo.train MODEL`, by Keras's `fit` or in a compat.v1 Session.

Run again, the command goes on where it was: in Keras behind the last epoch that ended.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import fusion
from fusion.data import cardinalities
from modelzoo import criteo, data
from modelzoo.export import export_graph, export_keras
from modelzoo.layers import KINDS, Embeddings, GraphLayers
from modelzoo.models import MODELS, OPTIMIZERS, compile_model, keras_model, sizes, training_step

v1 = tf.compat.v1

_EVAL_BATCH = 4096
#: What may differ when a training is gone on with.
_MAY_CHANGE = {"epochs", "export", "patience", "run"}


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """Adds what says which model it is and how it is trained."""
    add = parser.add_argument
    add("model", choices=MODELS)
    add("--style", choices=("keras", "graph"), default="keras", help="Keras 3 or compat.v1")
    add("--optimizer", choices=OPTIMIZERS, default="lazy-adam", help="%(default)s")
    add("--rate", type=float, help="learning rate")
    add("--batch-size", type=int, default=512, help="samples of a step; %(default)s")
    add("--cap", type=int, default=200_000, help="max ids of a synthetic feature; %(default)s")
    add("--seed", type=int, default=0, help="of initial values and samples; %(default)s")
    add("--dim", type=int, help="elements of the vectors")
    add("--hidden", type=_numbers, metavar="N,...", help="units of the layers on top")


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def parser() -> argparse.ArgumentParser:
    """The parser of the command's flags."""
    made = argparse.ArgumentParser(prog="python -m modelzoo.train", description=__doc__)
    add_model_flags(made)
    add = made.add_argument
    add("--embeddings", choices=KINDS, default="columns", help="what looks up; %(default)s")
    add("--do-fusion", choices=("v1", "v2"), help="fused feature columns")
    add("--enable", action="store_true", help="call fusion.enable()")
    add("--strategy", choices=("none", "mirrored"), default="none", help="all GPUs or two CPUs")
    add("--data", help="Parquet files; synthetic samples without")
    add("--eval-data", help="held-out ones; those of --data without")
    add("--samples", type=int, default=256_000, help="synthetic ones; %(default)s")
    add("--eval-samples", type=int, default=50_000, help="held-out synthetic ones; %(default)s")
    add("--epochs", type=int, default=1, help="%(default)s")
    add("--steps", type=int, help="max steps of an epoch")
    add("--save-every", type=int, default=500, help="steps, of --style graph; %(default)s")
    add("--patience", type=int, help="epochs without a better AUC before it ends, in Keras")
    add("--deterministic", action="store_true", help="the same numbers, fused or not")
    add("--run", type=Path, help="folder of checkpoints and logs; .zoo/MODEL without")
    add("--export", type=Path, help="folder for a SavedModel")
    return made


@dataclass(frozen=True)
class Data:
    """What a model is trained with and evaluated on: Parquet files, and the sizes of tables."""

    train: str | Path
    held_out: str | Path
    rows: dict[str, int]


def _data(flags: argparse.Namespace) -> Data:
    """The files of the flags; synthetic ones are written into the run's folder at first."""
    if flags.data is not None:
        held_out = flags.eval_data or flags.data
        rows = cardinalities([flags.data, held_out], criteo.CATEGORICAL)
        return Data(flags.data, held_out, rows)
    made = criteo.CriteoData(flags.cap, missing=0.02, seed=flags.seed)
    both = Data(flags.run / "train", flags.run / "held-out", criteo.cardinalities(flags.cap))
    for folder, samples in ((both.train, flags.samples), (both.held_out, flags.eval_samples)):
        if not Path(folder).exists():
            data.write(Path(folder), made, samples, held_out=folder == both.held_out)
    return both


def _begin(flags: argparse.Namespace) -> None:
    """Keeps the flags in the run's folder.

    Raises:
        ValueError: it holds a training with others.
    """
    file, own = flags.run / "flags.json", {name: str(one) for name, one in vars(flags).items()}
    kept = json.loads(file.read_text()) if file.exists() else own
    different = [f"{k}={kept.get(k)}" for k in own.keys() - _MAY_CHANGE if kept.get(k) != own[k]]
    if different:
        shown = ", ".join(sorted(different))
        raise ValueError(f"{flags.run}: a training with {shown}; remove it or name another --run")
    flags.run.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(own, indent=1) + "\n")


def _prepare(flags: argparse.Namespace) -> Any:
    """Prepares TensorFlow and returns the strategy."""
    if flags.deterministic:
        tf.config.experimental.enable_op_determinism()
        # TensorFlow's own optimizer would order the arithmetic of dense layers one way in graphs of
        # stock lookups and another way in those of fused ones.
        kept = {"arithmetic_optimization": False, "remapping": False}
        tf.config.optimizer.set_experimental_options(kept)
    if flags.enable:
        fusion.enable()
    if flags.strategy == "none":
        return tf.distribute.get_strategy()
    if flags.style == "graph":
        raise ValueError("--strategy is for --style keras")
    if tf.config.list_physical_devices("GPU"):
        return tf.distribute.MirroredStrategy()
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def fit(flags: argparse.Namespace, embeddings: Embeddings, files: Data, strategy: Any) -> None:
    """Trains, evaluates and exports a Keras model."""
    with strategy.scope():
        of = sizes(flags.dim, flags.hidden)
        model, vectors = keras_model(flags.model, embeddings, **of)
        auc = keras.metrics.AUC(from_logits=True, name="auc")
        compile_model(model, flags.optimizer, flags.rate, [auc])
    train = data.loader(files.train, flags.batch_size, files.rows, flags.seed)
    held_out = data.loader(files.held_out, _EVAL_BATCH, files.rows)
    callbacks = [
        keras.callbacks.BackupAndRestore(
            flags.run / "backup", double_checkpoint=True, delete_checkpoint=False
        ),
        # A training that goes on reads the samples of its epoch.
        keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: setattr(train, "epoch", epoch)
        ),
        keras.callbacks.TensorBoard(flags.run / "logs", write_graph=False),
        keras.callbacks.TerminateOnNaN(),
    ]
    if flags.patience is not None:
        callbacks.append(
            keras.callbacks.EarlyStopping("val_auc", patience=flags.patience, mode="max")
        )
    model.fit(
        train if flags.steps is None else train.take(flags.steps),
        epochs=flags.epochs,
        validation_data=held_out,
        callbacks=callbacks,
        shuffle=False,  # the loader does
        verbose=1 if sys.stdout.isatty() else 2,
    )
    loss, area = model.evaluate(held_out, verbose=0)
    print(f"held-out loss {loss:.6f}, AUC {area:.6f}")
    if flags.export is not None:
        export_keras(model, vectors, flags.export)


def run_session(flags: argparse.Namespace, embeddings: Embeddings, files: Data) -> None:
    """Trains, evaluates and exports a compat.v1 model."""
    of = sizes(flags.dim, flags.hidden)
    saved = v1.train.latest_checkpoint(flags.run)
    step = 0 if saved is None else int(v1.train.load_variable(saved, "global_step"))
    with tf.Graph().as_default():
        v1.set_random_seed(flags.seed)
        train = data.loader(files.train, flags.batch_size, files.rows, flags.seed)
        in_epoch = min(len(train), flags.steps or len(train))
        epoch, done = divmod(step, in_epoch)
        rest = train.resume(epoch, done).take(in_epoch - done)
        features, labels = _next(rest.concatenate(train.take(in_epoch).repeat()))
        logits = MODELS[flags.model](GraphLayers(embeddings, features), **of)
        loss, train_op = training_step(logits, labels, flags.optimizer, flags.rate)
        v1.summary.scalar("loss", loss)
        steps = flags.epochs * in_epoch
        bar = keras.utils.Progbar(steps, verbose=1 if sys.stdout.isatty() else 2)
        if step < steps:
            with v1.train.MonitoredTrainingSession(
                checkpoint_dir=str(flags.run),
                hooks=[v1.train.StopAtStepHook(last_step=steps), v1.train.NanTensorHook(loss)],
                save_checkpoint_secs=None,
                save_checkpoint_steps=flags.save_every,
            ) as session:
                while not session.should_stop():
                    _, value = session.run([train_op, loss])
                    step += 1
                    bar.update(step, [("loss", value)])
    saved = v1.train.latest_checkpoint(flags.run)
    value, area = _evaluate(flags.model, embeddings, files, saved, of)
    print(f"held-out loss {value:.6f}, AUC {area:.6f}")
    if flags.export is not None:
        export_graph(flags.model, embeddings, saved, flags.export, **of)


def _next(dataset: tf.data.Dataset) -> Any:
    """The next batch of a dataset, in a graph whose Session begins it with the tables."""
    iterator = v1.data.make_initializable_iterator(dataset)
    v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


def _evaluate(
    name: str, embeddings: Embeddings, files: Data, checkpoint: str, of: dict[str, Any]
) -> tuple[float, float]:
    """The mean loss and the AUC of the held-out samples."""
    with tf.Graph().as_default():
        v1.set_random_seed(0)
        features, labels = _next(data.loader(files.held_out, _EVAL_BATCH, files.rows))
        logits = MODELS[name](GraphLayers(embeddings, features), **of)
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
        _, loss = v1.metrics.mean(losses)
        _, area = v1.metrics.auc(labels, tf.sigmoid(logits))
        creator = v1.train.ChiefSessionCreator(checkpoint_filename_with_path=checkpoint)
        values = (0.0, 0.0)
        with v1.train.MonitoredSession(creator) as session:
            while not session.should_stop():
                values = session.run((loss, area))
    return values


def run(flags: argparse.Namespace) -> None:
    """Trains as the flags have it.

    Raises:
        ValueError: they do not go together, or the folder of the run holds another training.
    """
    flags.run = flags.run or Path(".zoo") / flags.model
    strategy = _prepare(flags)
    _begin(flags)
    files = _data(flags)
    embeddings = Embeddings(files.rows, flags.embeddings, flags.do_fusion, flags.seed)
    if flags.style == "graph":
        run_session(flags, embeddings, files)
    else:
        fit(flags, embeddings, files, strategy)


def main() -> None:
    """The command."""
    flags = parser().parse_args()
    tf.get_logger().setLevel("ERROR")  # feature columns are deprecated, as each of them would log
    try:
        run(flags)
    except (ValueError, NotImplementedError, OSError, tf.errors.OpError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
