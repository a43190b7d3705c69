# SPDX-License-Identifier: Apache-2.0
"""Starts, watches and stops training jobs of Cohort, in a notebook or a program.

    from cohort import job
    run = job.start("lm", "--steps", "200", "--eval-every", "50", out="out/lm")
    run.watch()      # live curves, until the job ends; interrupting the cell ends the picture only
    run.stop()       # as Ctrl-C does: the job saves a checkpoint
    run.history()    # {"step": [...], "eval": [...], ...}: records of history.jsonl

    job.follow("out/lm").watch()    # of a job that somebody else has started

The command `cohort` must be on the PATH, or given: job.start(..., command="./cohort").
Curves are SVG, which IPython shows; elsewhere watch prints lines. There is nothing
to install besides what Jupyter has.
"""

import collections
import html
import json
import math
import os
import signal
import subprocess
import tempfile
import time

__all__ = ["Run", "follow", "start"]

_FILE = "history.jsonl"
_MAX_FILE = 64 << 20  # bytes of a history
_POINTS = 600  # of a curve that is drawn


def start(task, *args, out, command="cohort"):
    """Starts `cohort train TASK ARGS --out OUT`, and returns the Run.

    What the job prints goes to a file: Run.output() returns its end.
    """
    log = tempfile.TemporaryFile()
    argv = [command, "train", task, *[str(a) for a in args], "--out", os.fspath(out)]
    try:
        # A session of its own: interrupting a cell of a notebook does not interrupt the job.
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    except FileNotFoundError:
        log.close()
        raise FileNotFoundError(f"there is no command {command!r}: give its path, as in job.start(..., command='./cohort')") from None
    return Run(out, process, log)


def follow(out):
    """Returns the Run in a directory, of a job that somebody else has started."""
    return Run(out)


class Run:
    """A run in a directory, and its job if it was started here."""

    def __init__(self, out, process=None, log=None):
        self.out = os.fspath(out)
        self.process = process
        self._log = log
        self._file = None
        self._identity = None
        self._rest = b""
        self._records = collections.defaultdict(list)

    def history(self):
        """Returns what the run has come to: lists of records by their kinds, such as "step" and "eval".

        It reads what is new since the last call. Without a history, all is empty.
        """
        path = os.path.join(self.out, _FILE)
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return self._records
        if found.st_size > _MAX_FILE:
            raise ValueError(f"{path} has more than {_MAX_FILE} bytes")
        identity = (found.st_dev, found.st_ino)
        if self._file is None or identity != self._identity or found.st_size < self._file.tell():
            if self._file is not None:  # it was written anew
                self._file.close()
            self._file, self._rest = open(path, "rb"), b""
            opened = os.fstat(self._file.fileno())
            self._identity = (opened.st_dev, opened.st_ino)
            self._records = collections.defaultdict(list)
        lines = (self._rest + self._file.read(_MAX_FILE)).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            record = json.loads(line)
            self._records[record.pop("kind")].append(record)
        return self._records

    def running(self):
        """Says whether the job that was started here runs. Of another one it says whether the run has no end yet."""
        if self.process is not None:
            return self.process.poll() is None
        return not self.history()["end"]

    def output(self, most=4000):
        """Returns the end of what the job has printed."""
        if self._log is None:
            return ""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - most))
        text = self._log.read().decode("utf-8", "replace")
        self._log.seek(0, os.SEEK_END)
        return text

    def stop(self, patience=60):
        """Stops the job that was started here, as Ctrl-C does, and returns its exit code.

        A job that does not end in so many seconds is asked to by SIGTERM, and then killed.
        """
        if self.process is None:
            raise RuntimeError("this job was not started here: stop it where it was")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is not None:
                break
            self.process.send_signal(number)
            try:
                self.process.wait(patience)
            except subprocess.TimeoutExpired:
                continue
        return self.process.returncode

    def watch(self, interval=1.0, seconds=None):
        """Shows live curves until the job ends, or for so many seconds. An interrupt ends the picture, not the job."""
        show = _display()
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        try:
            while True:
                going = self.running()
                show(self)
                if not going or time.monotonic() >= deadline:
                    return
                time.sleep(max(0.0, min(interval, deadline - time.monotonic())))
        except KeyboardInterrupt:
            return

    def summary(self):
        """Returns a line that says how far the run is."""
        h = self.history()
        if not h["run"]:
            return f"{self.out}: no step yet"
        steps = h["step"]
        text = f"{self.out}: step {steps[-1]['step'] if steps else h['run'][-1]['first_step']} of {h['run'][-1]['steps']}"
        if steps:
            text += f", loss {_number(steps[-1]['loss'])}"
        if h["eval"] and h["eval"][-1]["metrics"]:
            first = h["eval"][-1]["metrics"][0]
            text += f", {first['name']} {_number(first['value'])}"
        if h["end"]:
            text += ", ended"
        elif self.process is not None and self.process.poll() is not None:
            text += f", the job ended with {self.process.returncode}"
        return text

    def _repr_html_(self):
        h = self.history()
        loss = [(s["step"], s["loss"]) for s in h["step"]]
        checked = [(e["step"], m["value"]) for e in h["eval"] for m in e["metrics"] if m["name"] == "loss"]
        speed = [(s["step"], (s["size"] or s["steps"]) / s["seconds"]) for s in h["step"] if s["seconds"] > 0]
        unit = (h["run"][-1].get("unit") if h["run"] else None) or "steps"
        parts = [f"<p><b>{html.escape(self.summary())}</b></p>"]
        parts.append(_svg("loss", [("training", "#0b62c4", loss), ("validation", "#b3470b", checked)]))
        other = [(e["step"], e["metrics"][0]["value"]) for e in h["eval"] if e["metrics"] and e["metrics"][0]["name"] != "loss"]
        if other:
            name = next(e["metrics"][0]["name"] for e in h["eval"] if e["metrics"])
            parts.append(_svg(name, [("validation", "#b3470b", other)]))
        parts.append(_svg(f"{unit} a second", [("speed", "#0a7d4f", speed)], zero=True))
        for name in list(dict.fromkeys(v["name"] for v in h["value"]))[:12]:
            parts.append(_svg(name, [(name, "#8a2aa8", [(v["step"], v["value"]) for v in h["value"] if v["name"] == name])]))
        for name, s in {s["name"]: s for s in h["sample"]}.items():
            title = f"{html.escape(name)}, step {s['step']}"
            if s.get("png"):
                parts.append(f'<p>{title}<br><img alt="{html.escape(s.get("text") or name)}" src="data:image/png;base64,{html.escape(s["png"])}"> {html.escape(s.get("text") or "")}</p>')
            elif s.get("text"):
                parts.append(f"<p>{title}</p><pre style='white-space:pre-wrap'>{html.escape(s['text'])}</pre>")
        for note in h["note"][-3:]:
            parts.append(f"<p>⚠ {html.escape(note['text'])}</p>")
        return "".join(parts)


def _number(v):
    return "not finite" if v is None else f"{v:.4g}"


def _display():
    """Returns a function that shows a run: in place in a notebook, as a line elsewhere."""
    try:
        from IPython import get_ipython
        from IPython.display import HTML, display
    except ImportError:
        get_ipython = lambda: None
    if get_ipython() is None:
        last = []

        def line(run):
            if (text := run.summary()) != (last[-1] if last else None):
                last[:] = [text]
                print(text, flush=True)

        return line
    handle = display(HTML(""), display_id=True)
    return lambda run: handle.update(HTML(run._repr_html_()))


def _svg(title, curves, zero=False, width=560, height=180):
    """Draws curves of (step, value) with axes, as SVG."""
    curves = [(name, color, [(x, y) for x, y in points if y is not None and math.isfinite(y)]) for name, color, points in curves]
    curves = [(name, color, points) for name, color, points in curves if points]
    if not curves:
        return ""
    xs = [x for _, _, points in curves for x, _ in points]
    ys = [y for _, _, points in curves for _, y in points]
    left, right, top, bottom = min(xs), max(xs), max(ys), 0.0 if zero else min(ys)
    right, top = right if right > left else left + 1, top if top > bottom else bottom + 1
    x0, y0, w, h = 60, 26, width - 72, height - 50
    at = lambda x, y: (x0 + w * (x - left) / (right - left), y0 + h * (top - y) / (top - bottom))
    out = [f'<svg viewBox="0 0 {width} {height}" style="max-width:{width}px;width:100%;display:inline-block" role="img" aria-label="{html.escape(title)}" font-family="system-ui, sans-serif" font-size="11" fill="currentColor">']
    out.append(f'<text x="{x0}" y="14" font-weight="600" font-size="13">{html.escape(title)}</text>')
    for k in range(5):
        y = bottom + (top - bottom) * k / 4
        _, py = at(left, y)
        out.append(f'<path d="M{x0} {py:.1f}H{x0 + w}" stroke="currentColor" opacity="0.2"/><text x="{x0 - 6}" y="{py + 4:.1f}" text-anchor="end">{_number(y)}</text>')
    for x, anchor in ((left, "start"), (right, "end")):
        out.append(f'<text x="{at(x, top)[0]:.1f}" y="{y0 + h + 15}" text-anchor="{anchor}">step {x}</text>')
    for i, (name, color, points) in enumerate(curves):
        stride = max(1, math.ceil(len(points) / _POINTS))
        drawn = points[::stride] + (points[-1:] if (len(points) - 1) % stride else [])
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in (at(x, y) for x, y in drawn))
        out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.6"/>')
        if len(points) < 40:
            out.extend('<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>' % (*at(x, y), color) for x, y in points)
        out.append(f'<text x="{width - 12}" y="{14 + 14 * i}" text-anchor="end" fill="{color}">{html.escape(name)} {_number(points[-1][1])}</text>')
    out.append("</svg>")
    return "".join(out)
