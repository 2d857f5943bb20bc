// What the page was given: columns decoded once, and how a number and a moment read.

const decoded = (text, Kind) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    return new Kind(bytes.buffer);
};

export const AXES = {
    iteration: "iterations",
    samples: "samples",
    tokens: "tokens",
    at_s: "time",
};
// isSet: somebody has set it, and no mean says more of it.
export const CURVES = [
    { key: "loss", title: "Loss", unit: "", digits: 5 },
    { key: "learning_rate", title: "Learning rate", unit: "", digits: 4, isSet: true },
    { key: "batch", title: "Global batch size", unit: "samples", digits: 6, isSet: true },
    { key: "grad_norm", title: "Gradient norm", unit: "", digits: 4 },
    { key: "tflops", title: "TFLOP/s per GPU", unit: "", digits: 4 },
    { key: "mfu", title: "Model FLOP utilisation", unit: "%", digits: 4 },
    { key: "tokens_per_second", title: "Tokens per second", unit: "", digits: 4 },
    { key: "seconds", title: "Seconds per iteration", unit: "s", digits: 4 },
];
export const MARKS = {
    start: { title: "starts", letter: "S", dash: [] },
    spike: { title: "spikes", letter: "▲", dash: [2, 2] },
    skip: { title: "skipped data", letter: "»", dash: [6, 3] },
    kill: { title: "kill switch", letter: "K", dash: [] },
    revision: { title: "revisions", letter: "R", dash: [8, 2, 2, 2] },
    alert: { title: "alerts", letter: "!", dash: [2, 4] },
    checkpoint: { title: "checkpoints", letter: "", dash: [] },
};

const columnsOf = (texts) =>
    Object.fromEntries(
        Object.entries(texts).map(([name, text]) => [name, decoded(text, name in AXES ? Float64Array : Float32Array)]),
    );

export const page = JSON.parse(document.getElementById("data").textContent);
page.runs.forEach((run, number) => {
    for (const one of [run, ...run.superseded]) one.columns = columnsOf(one.columns);
    // What is no number is null in JSON.
    for (const points of Object.values(run.evaluations)) points[1] = points[1].map((one) => one ?? NaN);
    run.number = number;
});

// The place of the last value that is not above `wanted` in an ascending column; 0 where all are. What is not known is
// so at the beginning, and stands before all values.
export const placeOf = (column, wanted) => {
    let low = 0;
    let high = column.length - 1;
    while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (column[middle] > wanted) high = middle - 1;
        else low = middle;
    }
    return low;
};

// An iteration of a run on another axis; NaN where the run has no such axis, or the axis begins later.
export const along = (run, axis, iteration) => {
    const { iteration: iterations, [axis]: column } = run.columns;
    if (axis === "iteration" || iterations.length === 0) return iteration;
    const place = placeOf(iterations, iteration);
    const next = Math.min(place + 1, iterations.length - 1);
    const width = iterations[next] - iterations[place];
    const share = width > 0 ? Math.max(0, Math.min(1, (iteration - iterations[place]) / width)) : 0;
    return column[place] + share * (column[next] - column[place]);
};

export const has = (column) => column.some((value) => !Number.isNaN(value));

// Formatters are made once: each costs more than all that a hover may.
const numbers = new Intl.NumberFormat("en", { maximumFractionDigits: 20 });
const moment = { dateStyle: "medium", timeStyle: "short" };
const clocks = { world: new Intl.DateTimeFormat("en-GB", moment), log: new Intl.DateTimeFormat("en-GB", { ...moment, timeZone: "UTC" }) };

export const whole = (value) => numbers.format(Math.round(value));

export const worded = (value, digits = 4) => {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e15)) return value.toExponential(Math.min(3, digits - 1));
    if (size >= 1e6) {
        const [by, letter] = size >= 1e12 ? [1e12, "T"] : size >= 1e9 ? [1e9, "B"] : [1e6, "M"];
        return `${Number((value / by).toPrecision(Math.max(4, digits)))} ${letter}`;
    }
    return numbers.format(Number(value.toPrecision(Math.max(digits, Math.ceil(Math.log10(size + 1))))));
};

// "world" times are shown in the reader's own zone, a log's own clock as it stands in the log.
export const momentWords = (seconds, clock) => {
    if (clock === "trained") return `${worded(seconds / 3600)} h of training`;
    return Number.isFinite(seconds) ? (clocks[clock] ?? clocks.world).format(new Date(seconds * 1000)) : "";
};

// A tick of the time axis: days, or hours where they are near one another.
export const tickWords = (seconds, width, clock) => {
    const zone = clock === "log" ? { timeZone: "UTC" } : {};
    const form = width >= 86400 ? { day: "numeric", month: "short" } : { day: "numeric", hour: "2-digit", minute: "2-digit" };
    return new Intl.DateTimeFormat("en-GB", { ...form, ...zone }).format(new Date(seconds * 1000));
};

export const axisWords = (value, axis, clock) =>
    axis === "at_s" ? momentWords(value, clock) : `${AXES[axis].replace(/s$/, "")} ${whole(value)}`;
