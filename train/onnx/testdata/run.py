# SPDX-License-Identifier: Apache-2.0
"""Checks and runs ONNX files for TestRuntime: reads {"file", "inputs": {name: {"shape", "values"}}} as JSON
lines from standard input, prints {output: values} for each.

    python run.py       (needs onnx, onnxruntime, numpy)
"""
import json
import sys

import numpy as np
import onnx
import onnxruntime

for line in sys.stdin:
    q = json.loads(line)
    onnx.checker.check_model(onnx.load(q["file"]), full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(q["file"], options, providers=["CPUExecutionProvider"])
    dtypes = {i.name: np.int64 if i.type == "tensor(int64)" else np.float32 for i in session.get_inputs()}
    feeds = {n: np.array([np.nan if x is None else x for x in v["values"]], dtypes[n]).reshape(v["shape"]) for n, v in q["inputs"].items()}
    outputs = [o.name for o in session.get_outputs()]
    print(json.dumps(dict(zip(outputs, (y.ravel().tolist() for y in session.run(outputs, feeds))))), flush=True)
