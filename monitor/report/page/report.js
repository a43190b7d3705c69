// The page of a report: curves of the runs whose data stand in the page.
(() => {
	"use strict";
	const runs = JSON.parse(document.getElementById("runs").textContent);
	const dark = matchMedia("(prefers-color-scheme: dark)");
	const light = ["#0b62c4", "#b3470b", "#0a7d4f", "#8a2aa8", "#a11d4e", "#5d6a00", "#00707f", "#5b4bc4"];
	const bright = ["#6fb1ff", "#ffab70", "#66d6a0", "#dc9cf5", "#ff9ab8", "#cfdc5a", "#6cd6e4", "#b3a8ff"];
	const color = (i) => (dark.matches ? bright : light)[i % light.length];
	const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
	runs.forEach((r) => r.evaluations.forEach((e) => { e.metrics ||= []; }));
	const shown = runs.map(() => true);
	let by = "step", smooth = true, log = false;

	// What is drawn: of each run a list of [record, value].
	const charts = [
		{ title: "loss", of: (r) => r.steps, value: (s) => s.loss, smooth: true, canLog: true },
		{ title: "validation", of: (r) => r.evaluations, value: (e) => e.metrics.length ? e.metrics[0].value : null, points: true, canLog: true },
		{ title: "speed", of: (r) => r.steps, value: (s) => (s.seconds > 0 ? s.size / s.seconds : null), smooth: true },
		{ title: "learning rate", of: (r) => r.steps, value: (s) => s.lr },
		{ title: "gradient norm", of: (r) => r.steps, value: (s) => s.grad_norm, smooth: true, canLog: true },
	];

	const x = (run, record) => (by === "step" ? record.step : by === "epoch" ? record.epoch : (record.time - run.begun) / 60);

	function smoothed(values) {
		let mean = null;
		return values.map((v) => (v === null ? null : (mean = mean === null ? v : 0.9 * mean + 0.1 * v)));
	}

	// data joins the curves of the runs to the columns that uPlot wants.
	function data(chart) {
		const tables = runs.map((run, i) => {
			const records = shown[i] ? chart.of(run).filter((r) => Number.isFinite(x(run, r))) : [];
			let values = records.map(chart.value).map((v) => (Number.isFinite(v) ? v : null));
			if (chart.smooth && smooth) values = smoothed(values);
			const rows = records.map((r, k) => [x(run, r), values[k]]).sort((a, b) => a[0] - b[0]);
			return [rows.map((r) => r[0]), rows.map((r) => r[1])];
		});
		return uPlot.join(tables);
	}

	const plots = [];
	function draw() {
		plots.splice(0).forEach((p) => p.destroy());
		for (const chart of charts) {
			const joined = data(chart);
			const has = joined.slice(1).some((column) => column.some((v) => v !== null && v !== undefined));
			chart.figure.hidden = !has;
			if (!has) continue;
			const axis = { stroke: style("--ink"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line") } };
			plots.push(new uPlot({
				width: chart.figure.clientWidth - 18, height: 230,
				scales: { x: { time: false }, y: { distr: log && chart.canLog ? 3 : 1 } },
				axes: [{ ...axis, label: { step: "step", time: "minutes", epoch: "epoch" }[by], labelSize: 20 }, { ...axis, size: 64 }],
				series: [{ label: by }].concat(runs.map((run, i) => ({
					label: run.name, stroke: color(i), width: 1.6, show: shown[i], spanGaps: true, points: { show: !!chart.points, size: 5 },
				}))),
				legend: { live: true },
			}, joined, chart.figure));
		}
		runs.forEach((_, i) => { for (const s of document.querySelectorAll(`[data-run="${i}"]`)) s.style.background = color(i); });
	}

	function element(tag, text, parent) {
		const e = document.createElement(tag);
		if (text) e.textContent = text;
		parent.append(e);
		return e;
	}

	const nav = document.querySelector("nav");
	const choose = element("select", "", element("label", "curves by", nav));
	for (const [value, text] of [["step", "step"], ["time", "time"], ["epoch", "epoch"]]) element("option", text, choose).value = value;
	choose.addEventListener("change", () => { by = choose.value; draw(); });
	function box(text, on, set) {
		const label = element("label", "", nav), input = element("input", "", label);
		label.append(text);
		input.type = "checkbox";
		input.checked = on;
		input.addEventListener("change", () => { set(input.checked); draw(); });
		return label;
	}
	box("smooth", smooth, (v) => { smooth = v; });
	box("logarithmic", log, (v) => { log = v; });
	if (runs.length > 1) runs.forEach((run, i) => {
		const label = box("", true, (v) => { shown[i] = v; });
		const swatch = element("span", "", label);
		swatch.className = "swatch";
		swatch.dataset.run = i;
		label.append(run.name);
	});

	const place = document.querySelector(".charts");
	for (const chart of charts) {
		chart.figure = element("figure", "", place);
		const units = [...new Set(runs.map((r) => r.unit).filter(Boolean))];
		let title = chart.title;
		if (title === "speed" && units.length) title += `, ${units.join(", ")} a second`;
		if (title === "validation") title += ": " + [...new Set(runs.flatMap((r) => r.evaluations).filter((e) => e.metrics.length).map((e) => e.metrics[0].name))].join(", ");
		element("figcaption", title, chart.figure);
	}
	draw();
	dark.addEventListener("change", draw);
	let timer;
	addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(draw, 100); });
})();
