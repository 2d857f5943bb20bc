// What is told in words, tables and bars.
import { MARKS, momentWords, page, whole, worded } from "./data.js";

const SVG = "http://www.w3.org/2000/svg";
const MOST_ROWS = 400;

const text = (tag, words, properties = {}) => Object.assign(document.createElement(tag), { textContent: words, ...properties });

const table = ({ title, headings, rows, note }, run) => {
    const box = document.createElement("div");
    const found = document.createElement("table");
    const head = document.createElement("tr");
    const body = document.createElement("tbody");
    head.append(...headings.map((one) => text("th", one, { scope: "col" })));
    for (const row of rows) {
        const line = document.createElement("tr");
        line.append(...row.map((one, place) => (place ? text("td", one) : text("th", one, { scope: "row" }))));
        body.append(line);
    }
    const caption = text("caption", title);
    const top = document.createElement("thead");
    top.append(head);
    found.append(caption, top, body);
    box.append(found, ...(note ? [text("p", note, { className: "note" })] : []));
    box.className = headings.length > 4 ? "table wide" : "table";
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", page.runs.length > 1 ? `${title}, ${run.name}` : title);
    return box;
};

// A run's wall time: attempts, waits and gaps, one after the other.
const timeline = (run) => {
    const [first, last] = [run.timeline[0].begins_s, run.timeline[run.timeline.length - 1].ends_s];
    const width = Math.max(1, last - first);
    const svg = document.createElementNS(SVG, "svg");
    const totals = {};
    svg.setAttribute("viewBox", "0 0 1000 60");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    for (const one of run.timeline) {
        const kind = one.is_bad ? "bad" : one.kind.replace(" ", "-");
        const bar = document.createElementNS(SVG, "rect");
        const title = document.createElementNS(SVG, "title");
        const share = (one.ends_s - one.begins_s) / width;
        title.textContent = one.text;
        bar.setAttribute("class", `stretch ${kind}`);
        bar.setAttribute("x", (1000 * (one.begins_s - first)) / width);
        bar.setAttribute("y", one.kind === "attempt" ? 4 : 22);
        bar.setAttribute("height", one.kind === "attempt" ? 52 : 16);
        bar.setAttribute("width", Math.max(1, 1000 * share));
        bar.append(title);
        svg.append(bar);
        totals[kind] = (totals[kind] ?? 0) + share;
    }
    const words = Object.entries(totals).map(([kind, share]) => `${LEGEND[kind]} ${(100 * share).toFixed(0)} %`);
    svg.setAttribute("aria-label", `Wall time of ${run.name}: ${words.join(", ")}`);
    const ends = document.createElement("p");
    ends.className = "ends";
    ends.append(text("span", momentWords(first, run.clock)), text("span", momentWords(last, run.clock)));
    const legend = document.createElement("ul");
    legend.className = "legend";
    legend.append(...Object.keys(totals).map((kind) => text("li", LEGEND[kind], { className: kind })));
    const figure = document.createElement("figure");
    figure.className = "timeline";
    const caption = document.createElement("figcaption");
    caption.append(text("h2", "Attempts and waits"));
    figure.append(caption, svg, ends, legend);
    return figure;
};

const LEGEND = {
    attempt: "attempt that runs or ended as planned",
    bad: "attempt that failed; its work since the last checkpoint is lost",
    waited: "waiting in the queue",
    idle: "no job in the queue",
    "not-known": "unknown",
};
const PARTS = {
    starting: "from the start of a job to its first iteration",
    exiting: "from the last iteration to the end of a job that ended as planned",
    lost: "iterations that were trained again, failed starts and hangs, by cause",
};

// The large numbers of a run.
const figuresOf = (run) => {
    const list = document.createElement("dl");
    list.className = "figures";
    for (const { name, value, note } of run.figures) {
        const one = document.createElement("div");
        one.append(text("dt", name), text("dd", value), ...(note ? [text("dd", note, { className: "note" })] : []));
        list.append(one);
    }
    return list;
};

// A share of a wall time, in the unit that leaves few digits.
const spanWords = (hours) => {
    const [unit, inHour] = [["h", 1], ["min", 60], ["s", 3600]].find(([, many]) => hours * many >= 1) ?? ["s", 3600];
    return `${worded(hours * inHour, hours * inHour >= 1 ? 3 : 1)} ${unit}`;
};

const shares = (run) => {
    const rows = run.shares.map((one) => [one.part, `${one.percent.toFixed(1)} %`, spanWords(one.hours)]);
    const meant = Object.entries(PARTS).filter(([part]) => run.shares.some((one) => one.part.startsWith(part)));
    const note = meant.map(([part, words]) => `${part}: ${words}`).join("; ");
    const box = table({ title: "Where the time went", headings: ["Part", "Of the wall time", "Time"], rows, note }, run);
    box.querySelectorAll("tbody tr").forEach((row, place) => {
        const bar = document.createElement("meter");
        Object.assign(bar, { min: 0, max: 100, value: run.shares[place].percent });
        bar.setAttribute("aria-hidden", "true");
        row.children[1].prepend(bar);
    });
    return box;
};

const happenings = (run, go) => {
    const marks = run.marks.filter((mark) => mark.kind !== "checkpoint");
    if (marks.length === 0) return [];
    const shown = marks.slice(-MOST_ROWS).reverse();
    const rows = shown.map((mark) => {
        const when = mark.at_s === null || run.clock === "" ? "" : momentWords(mark.at_s, run.clock);
        return [whole(mark.iteration), MARKS[mark.kind].title, mark.text, when];
    });
    const left = marks.length > shown.length ? `The newest ${shown.length} of ${marks.length}.` : "";
    const box = table({ title: "What happened", headings: ["Iteration", "Kind", "What", "When"], rows, note: left }, run);
    box.classList.add("tall");
    box.querySelectorAll("tbody tr").forEach((row, place) => {
        const button = text("button", row.firstChild.textContent, { type: "button", title: "Show it in the curves" });
        button.addEventListener("click", () => go(run, shown[place].iteration));
        row.firstChild.replaceChildren(button);
        row.children[1].className = `mark-${shown[place].kind}`;
    });
    return [box];
};

export const tell = (go) => {
    const isOne = page.runs.length === 1;
    const [summary, happened, tables] = ["summary", "happenings", "tables"].map((id) => document.getElementById(id));
    document.getElementById("title").textContent = page.title;
    document.getElementById("made").textContent = `As of ${momentWords(Date.parse(page.made_at) / 1000, "world")}`;
    for (const run of page.runs) {
        const name = () => (isOne ? [] : [text("h2", run.name)]);
        summary.append(...(isOne ? [] : [text("h2", run.name, { className: `run-${run.number % 6}` })]), figuresOf(run));
        const events = [...(run.timeline.length ? [timeline(run)] : []), ...happenings(run, go)];
        happened.append(...(events.length ? [...name(), ...events] : []));
        tables.append(...name(), ...(run.shares.length ? [shares(run)] : []), ...run.tables.map((one) => table(one, run)));
    }
};
