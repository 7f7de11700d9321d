peers = {"ONNX Runtime": onnx_runtime} | ({"OpenVINO": open_vino} if openvino else {})
names = " | ".join(peers)
print(f"| model | load, ms | {names} | ratio | run, ms | {names} | ratio |")
print("|---" * (2 * len(peers) + 5) + "|")
for name, inputs in cases():
    path = os.path.join(models, name)
    if only not in name:
        continue
    with tempfile.TemporaryDirectory() as folder:
        if name == "minilm/model.onnx" and os.path.exists(os.path.join(models, "minilm", "config.json")):
            path = os.path.join(folder, "model.onnx")
            export_minilm(os.path.join(models, "minilm"), path)
        if not os.path.exists(path):
            continue
        known = {i.name for i in ort.InferenceSession(path).get_inputs()}
        inputs = {k: v for k, v in inputs.items() if k in known}
        files = {k: os.path.join(folder, k + ".npy") for k in inputs}
        for k, v in inputs.items():
            np.save(files[k], v)
        loads, runs = [], []
        for _ in range(rounds):
            row = [ours(path, files)] + [timed(lambda: make(path, inputs)) for make in peers.values()]
            loads.append([load for load, _ in row])
            runs.append([run for _, run in row])

    def columns(rows, digits):
        ratio = statistics.median(row[0] / min(row[1:]) for row in rows)
        return " | ".join(f"{statistics.median(c):.{digits}f}" for c in zip(*rows)) + f" | {ratio:.2f}"

    shape = "x".join(str(n) for n in max(inputs.values(), key=lambda v: v.size).shape)
    title = os.path.basename(name) if "/model.onnx" not in name else name.split("/")[0]
    print(f"| {title} {shape} | {columns(loads, 1)} | {columns(runs, 2)} |", flush=True)
