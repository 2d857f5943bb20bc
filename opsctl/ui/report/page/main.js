// The page: its state, kept in the address so that a reload, or who is sent it, sees the same.
import { AXES, CURVES, MARKS, along, has, page } from "./data.js";
import { Curves } from "./curves.js";
import { Controls, USUAL, WINDOWS } from "./controls.js";
import { tell } from "./tables.js";

const state = {
    axis: "iteration",
    smoothing: USUAL,
    logs: new Set(),
    chart: "",
    isAgain: true,
    theme: "auto",
    range: null,
    position: null,
    hidden: new Set(),
    kinds: new Set(Object.keys(MARKS)),
};

const readAddress = () => {
    const said = new URLSearchParams(location.hash.slice(1));
    const axis = said.get("x");
    if (axis in AXES && page.runs.some((run) => has(run.columns[axis]))) state.axis = axis;
    if (said.has("smooth") && WINDOWS.includes(Number(said.get("smooth")))) state.smoothing = Number(said.get("smooth"));
    if (["light", "dark"].includes(said.get("theme"))) state.theme = said.get("theme");
    state.logs = new Set((said.get("log") ?? "").split(",").filter(Boolean));
    state.chart = CURVES.find(({ key }) => said.has(key))?.key ?? "";
    state.isAgain = said.get("again") !== "0";
    const range = (said.get("from") ?? "").split("-").map(Number);
    if (range.length === 2 && range.every(Number.isFinite) && range[0] < range[1]) state.range = range;
    for (const number of (said.get("hide") ?? "").split(",").filter(Boolean)) state.hidden.add(Number(number));
};

let pending = 0;
const writeAddress = () => {
    clearTimeout(pending);
    pending = setTimeout(() => {
        const said = new URLSearchParams();
        if (state.axis !== "iteration") said.set("x", state.axis);
        if (state.smoothing !== USUAL) said.set("smooth", state.smoothing);
        if (state.logs.size) said.set("log", [...state.logs].join(","));
        if (!state.isAgain) said.set("again", "0");
        if (state.theme !== "auto") said.set("theme", state.theme);
        if (state.range) said.set("from", state.range.map((one) => Math.round(one)).join("-"));
        if (state.hidden.size) said.set("hide", [...state.hidden].join(","));
        history.replaceState(null, "", `#${[state.chart, said.toString()].filter(Boolean).join("&")}`);
    }, 250);
};

readAddress();
document.documentElement.dataset.theme = state.theme;
const curves = new Curves(document.getElementById("curves"), state);
const controls = new Controls(document.getElementById("controls"), state, curves);
state.changed = writeAddress;

tell((run, iteration) => {
    const [low, high] = curves.bounds;
    const known = along(run, state.axis, iteration);
    const at = Number.isNaN(known) ? low : known;
    const width = (high - low) / 20;
    state.position = at;
    curves.within(at - width, at + width);
    curves.read(at);
    document.getElementById("curves").focus();
});
controls.redraw();
if (state.range) curves.zoom(...state.range);
// Charts have their heights a frame later.
if (state.chart) requestAnimationFrame(() => document.getElementById(state.chart)?.scrollIntoView());
// Paper is white, and narrower than the screen.
const printed = (theme) => () => {
    document.documentElement.dataset.theme = theme ?? state.theme;
    controls.redraw();
};
addEventListener("beforeprint", printed("light"));
addEventListener("afterprint", printed());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => controls.redraw());
document.documentElement.dataset.ready = "yes";
