// What the ranks wait for, on demand: their stacks and their last calls, from the flight recorders.
function makeRecorder(parent) {
	const box = element("div", "", parent, "recorder"), button = element("button", "What do the ranks wait for?", box);
	const told = element("span", "stacks and last calls, from their flight recorders; the job goes on", box, "soft");
	const place = element("div", "", parent);
	place.setAttribute("aria-live", "polite");
	button.addEventListener("click", async () => {
		button.disabled = true;
		told.textContent = "asks the ranks …";
		try {
			const answer = await fetch(address("recorder", {}), { cache: "no-store", signal: AbortSignal.timeout(15000) });
			if (!answer.ok) throw new Error(answer.status === 404 ? "there is nobody to ask" : (await answer.text()).slice(0, 500));
			const { text, report } = await answer.json();
			told.textContent = `as of ${clock(Date.now() / 1000)}`;
			showRecorder(place, text, report || {});
		} catch (err) {
			told.textContent = `⚠ ${err.message || err}`;
		}
		button.disabled = false;
		button.focus();
	});
}

function showRecorder(place, text, report) {
	place.replaceChildren();
	const groups = report.groups || [], waits = groups.filter((g) => g.waiting);
	element("p", waits.length ? "" : "no rank waits for another one", place, waits.length ? "" : "good").hidden = waits.length > 0;
	if (waits.length) {
		table(place, ["group", "call", "since", "waiting", "missing", "what they do instead"], waits.map((g) => {
			const w = g.waiting;
			return [g.name, `${w.call} (${w.seq})`, duration(w.longest_ns / 1e9), [w.ranks].concat((w.sites || []).map((s) => `${s.ranks}: ${s.site}`)), element("span", w.missing || "", null, "bad"),
				(w.absent || []).map((a) => `rank ${a.rank}: ${a.fate || a.why}${a.doing ? `, in ${a.doing.call}` : ""}${a.at ? `, at ${a.at}` : ""}`)];
		}));
	}
	for (const g of waits) for (const a of g.waiting.absent || []) if (a.stack) details(place, `Stack of rank ${a.rank}`, (to) => element("pre", a.stack, to, "text"));
	for (const g of groups) if ((g.recent || []).length) details(place, `Last calls of group ${g.name}`, (to) => table(to, ["number", "ranks", "call", "state", "from"],
		g.recent.flatMap((r) => r.calls.map((c, i) => [i ? "" : String(r.seq), c.ranks, c.call || "", c.state || element("span", "not called", null, "bad"), c.site || ""]))));
	details(place, "All of it, as text", (to) => element("pre", text, to, "text"));
}

function details(place, title, fill) {
	const d = element("details", "", place);
	element("summary", title, d);
	fill(element("div", "", d, "scroll"));
}
