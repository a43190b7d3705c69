# SPDX-License-Identifier: Apache-2.0
"""Copies a run of Cohort to Weights & Biases or to MLflow.

    python3 -m cohort.export wandb out/lm --project translation
    python3 -m cohort.export mlflow out/lm --project translation --follow

It reads history.jsonl of the run's directory, also while the run goes on (--follow),
and calls the Python package of W&B or MLflow, which must be installed and set up
(wandb login, MLFLOW_TRACKING_URI). So no part of a job waits for either.

Where what goes:

    record of the history    W&B and MLflow
    step                     train/loss, train/learning_rate, train/grad_norm, train/step_seconds, train/size_per_second, train/epoch
    eval                     validation/NAME
    value                    NAME
    ranks                    time/PHASE: share of the ranks' time
    run                      settings: config of W&B, parameters of MLflow; config.toml too, with Python 3.11
    sample (texts)           W&B: a table of HTML; MLflow: a text artifact

Numbers that are not finite are left out.
"""

import argparse
import html
import math
import os
import sys
import time

from .job import follow


def numbers(kind, record):
    """Returns what a record of the history says at its step, as {name: number}."""
    if kind == "step":
        found = {
            "train/loss": record.get("loss"), "train/learning_rate": record.get("lr"), "train/grad_norm": record.get("grad_norm"),
            "train/step_seconds": record["seconds"] / record["steps"], "train/epoch": record.get("epoch"),
        }
        if record["seconds"] > 0:
            found["train/size_per_second"] = record["size"] / record["seconds"]
    elif kind == "eval":
        found = {"validation/" + m["name"]: m["value"] for m in record["metrics"]}
    elif kind == "value":
        found = {record["name"]: record["value"]}
    elif kind == "ranks":
        found = {"time/" + name: sum(v or 0 for v in c) / len(c) / record["seconds"] for name, c in record["phases"].items() if c and record["seconds"] > 0}
    else:
        found = {}
    return {name: float(v) for name, v in found.items() if v is not None and math.isfinite(v)}


def settings(out, history):
    """Returns the settings of a run, as far as they are known."""
    found = {name: v for name, v in history["run"][-1].items() if name in ("task", "model", "data", "params", "dtype", "ranks", "threads", "strategy", "steps")}
    try:
        import tomllib

        with open(os.path.join(out, "config.toml"), "rb") as f:
            found.update(tomllib.load(f))
    except (ImportError, FileNotFoundError):
        pass
    return found


class WandB:
    def __init__(self, project, name, config):
        import wandb

        self.wandb = wandb
        self.run = wandb.init(project=project, name=name, config=config)
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def log(self, step, when, values):
        # "step" is a number of its own, because W&B takes its steps in their order only.
        self.run.log({**values, "step": step})

    def text(self, step, name, text):
        self.run.log({name: self.wandb.Html(f"<pre>{html.escape(text)}</pre>", inject=False), "step": step})

    def end(self):
        self.run.finish()


class MLflow:
    def __init__(self, project, name, config):
        import mlflow

        self.mlflow = mlflow
        mlflow.set_experiment(project)
        self.run = mlflow.start_run(run_name=name)
        self.client = mlflow.MlflowClient()
        mlflow.log_params({key: str(v)[:500] for key, v in config.items()})

    def log(self, step, when, values):
        from mlflow.entities import Metric

        self.client.log_batch(self.run.info.run_id, metrics=[Metric(name, v, int(1000 * when), step) for name, v in values.items()])

    def text(self, step, name, text):
        self.mlflow.log_text(text, f"{name}/step-{step:08d}.txt")

    def end(self):
        self.mlflow.end_run()


def copy(run, target, project, name=None, following=False, interval=5.0):
    """Copies a run (job.Run), and what comes if following, until its end. Returns how many records were copied."""
    sink, done, copied, count, history = None, {}, {}, 0, None
    while True:
        last, history = history, run.history()
        if last is not history:  # it was written anew: what was copied is known by step and name
            done = {kind: 0 for kind in ("step", "eval", "value", "ranks", "sample")}
        if history["run"] and sink is None:
            sink = target(project, name or os.path.basename(os.path.normpath(run.out)), settings(run.out, history))
        if sink is not None:
            for kind in done:
                for record in history[kind][done[kind] :]:
                    key = (kind, record.get("name"))
                    if record["step"] <= copied.get(key, -1):
                        continue
                    copied[key] = record["step"]
                    if kind == "sample":
                        if not record.get("text") or record.get("png"):
                            continue
                        sink.text(record["step"], record["name"], record["text"])
                    elif values := numbers(kind, record):
                        sink.log(record["step"], record["time"], values)
                    count += 1
                done[kind] = len(history[kind])
        if not following or history["end"]:
            break
        time.sleep(interval)
    if sink is not None:
        sink.end()
    return count


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python3 -m cohort.export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=["wandb", "mlflow"])
    parser.add_argument("run", help="the directory of a run (--out of the training)")
    parser.add_argument("--project", default="cohort", help="project of W&B, experiment of MLflow")
    parser.add_argument("--name", help="of the run there; by default that of the directory")
    parser.add_argument("--follow", action="store_true", help="go on until the run has ended")
    args = parser.parse_args(argv)
    run = follow(args.run)
    if not args.follow and not run.history()["run"]:
        parser.error(f"{args.run} has no history.jsonl: give the directory of a run, or --follow to wait for it")
    try:
        count = copy(run, {"wandb": WandB, "mlflow": MLflow}[args.target], args.project, args.name, args.follow)
    except ImportError as err:
        parser.error(f"{err}: pip install {args.target}")
    print(f"{count} records copied")


if __name__ == "__main__":
    sys.exit(main())
