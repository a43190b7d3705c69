# SPDX-License-Identifier: Apache-2.0
"""python3 -m unittest tests/test_job.py, in clients/python: a false command writes the histories."""

import json
import os
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from cohort import export, job

COMMAND = """#!/usr/bin/env python3
import json, os, signal, sys, time
out = sys.argv[sys.argv.index("--out") + 1]
os.makedirs(out, exist_ok=True)
def interrupted(*_):
    print("saved a checkpoint", flush=True)
    sys.exit(3)
signal.signal(signal.SIGINT, interrupted)
with open(os.path.join(out, "history.jsonl"), "w") as f:
    f.write(json.dumps({"kind": "run", "first_step": 0, "steps": 100, "unit": "tokens"}) + "\\n")
    for step in range(1, 11):
        f.write(json.dumps({"kind": "step", "step": step, "steps": 1, "loss": 5 / step, "size": 10, "seconds": 0.5}) + "\\n")
    f.write('{"kind": "st')
print("ready", sys.argv[1:], flush=True)
time.sleep(60)
"""


def write(out, records, mode="w"):
    with open(os.path.join(out, "history.jsonl"), mode) as f:
        f.writelines(json.dumps(r) + "\n" for r in records)


def step(n, loss=1.0):
    return {"kind": "step", "step": n, "steps": 1, "loss": loss, "size": 4, "seconds": 0.5}


class JobTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = folder.name

    def test_start_and_stop(self):
        command = os.path.join(self.dir, "cohort")
        with open(command, "w") as f:
            f.write(COMMAND)
        os.chmod(command, 0o755)
        run = job.start("lm", "--steps", 100, out=os.path.join(self.dir, "out"), command=command)
        self.addCleanup(run.process.kill)
        while "ready" not in run.output():
            self.assertTrue(run.running(), run.output())
            time.sleep(0.02)
        self.assertIn("['train', 'lm', '--steps', '100', '--out'", run.output())
        self.assertEqual(len(run.history()["step"]), 10)  # and not the line that has no end
        self.assertEqual(run.summary(), f"{run.out}: step 10 of 100, loss 0.5")
        run.watch(seconds=0)
        self.assertEqual(run.stop(), 3)
        self.assertIn("saved a checkpoint", run.output())
        self.assertFalse(run.running())

    def test_history_grows_and_is_written_anew(self):
        run = job.follow(self.dir)
        self.assertEqual(run.summary(), f"{self.dir}: no step yet")
        write(self.dir, [{"kind": "run", "first_step": 0, "steps": 9}, step(1), step(2)])
        self.assertEqual(len(run.history()["step"]), 2)
        write(self.dir, [step(3)], "a")
        self.assertEqual([s["step"] for s in run.history()["step"]], [1, 2, 3])
        os.rename(os.path.join(self.dir, "history.jsonl"), os.path.join(self.dir, "old"))
        write(self.dir, [{"kind": "run", "first_step": 0, "steps": 9}, step(7), {"kind": "end", "step": 7}])
        self.assertEqual([s["step"] for s in run.history()["step"]], [7])
        self.assertFalse(run.running())

    def test_pictures_are_markup_whatever_the_names_are(self):
        bad = "<script>&\"'"
        write(self.dir, [
            {"kind": "run", "first_step": 0, "steps": 9, "unit": bad}, step(1, None), step(2, 2.5), step(3, 2.0),
            {"kind": "eval", "step": 2, "metrics": [{"name": bad, "value": None}]}, {"kind": "eval", "step": 3, "metrics": [{"name": bad, "value": 1}]},
            {"kind": "value", "step": 1, "name": bad, "value": 1}, {"kind": "sample", "step": 1, "name": bad, "text": bad}, {"kind": "note", "text": bad},
            {"kind": "sample", "step": 1, "name": "p", "png": "aGk=", "text": bad},
        ])
        picture = job.follow(self.dir)._repr_html_()
        self.assertNotIn("<script", picture)
        xml.etree.ElementTree.fromstring("<div>" + picture.replace("<br>", "<br/>").replace('hi">', 'hi"/>').replace('aGk=">', 'aGk="/>') + "</div>")
        self.assertEqual(picture.count("<svg"), 4)

    def test_export(self):
        copied = []

        class Sink:
            def __init__(self, project, name, config):
                copied.append((project, name, config["task"], config["steps"]))

            def log(self, step, when, values):
                copied.append((step, when, values))

            def text(self, step, name, text):
                copied.append((step, name, text))

            def end(self):
                copied.append("end")

        records = [
            {"kind": "run", "task": "lm", "first_step": 0, "steps": 9}, dict(step(1, None), time=5), dict(step(2), time=6, lr=0.5),
            {"kind": "eval", "step": 2, "time": 7, "metrics": [{"name": "loss", "value": 2}, {"name": "bad", "value": None}]},
            {"kind": "value", "step": 2, "time": 7, "name": "accuracy", "value": 0.5}, {"kind": "sample", "step": 2, "time": 7, "name": "s", "text": "t"},
            {"kind": "ranks", "step": 2, "time": 7, "seconds": 4, "phases": {"data": [1, 3]}}, {"kind": "end", "step": 2},
        ]
        write(self.dir, records)
        self.assertEqual(export.copy(job.follow(self.dir), Sink, "p", following=True), 6)
        rates = {"train/step_seconds": 0.5, "train/size_per_second": 8.0}
        self.assertEqual(copied, [
            ("p", os.path.basename(self.dir), "lm", 9), (1, 5, rates), (2, 6, {"train/loss": 1.0, "train/learning_rate": 0.5, **rates}),
            (2, 7, {"validation/loss": 2.0}), (2, 7, {"accuracy": 0.5}), (2, 7, {"time/data": 0.5}), (2, "s", "t"), "end",
        ])

    def test_errors(self):
        with self.assertRaisesRegex(FileNotFoundError, "there is no command 'no-such-cohort': give its path"):
            job.start("lm", out=self.dir, command="no-such-cohort")
        with self.assertRaisesRegex(RuntimeError, "was not started here"):
            job.follow(self.dir).stop()


if __name__ == "__main__":
    unittest.main()
