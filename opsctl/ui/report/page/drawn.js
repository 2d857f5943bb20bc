// What is drawn beneath the curves and over them: iterations that were trained again later, and marks.
import { MARKS, along } from "./data.js";
import { colourOf, css } from "./colours.js";

// Letters of kinds that often come together stand on lines of their own.
const LINES = ["start", "revision", "alert", "spike", "skip", "kill", "checkpoint"];

// Draws within the plot's own frame, and leaves the canvas as it was.
const within = ({ ctx, bbox }, draw) => {
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    draw(ctx, bbox);
    ctx.restore();
};

// The running mean over about `window` iterations of a column: later values weigh more.
export const smoothed = (iterations, column, window) => {
    if (window <= 0) return column;
    const found = new Array(column.length);
    let sum = 0;
    let weight = 0;
    for (let place = 0; place < column.length; place += 1) {
        const keep = place ? Math.exp(-(iterations[place] - iterations[place - 1]) / window) : 0;
        const value = column[place];
        if (Number.isFinite(value)) {
            sum = sum * keep + value * (1 - keep || 1);
            weight = weight * keep + (1 - keep || 1);
        }
        found[place] = weight ? sum / weight : NaN;
    }
    return found;
};

export const drawSuperseded = (plot, curve, runs, { axis, logs, isAgain, smoothing }) => {
    if (!isAgain) return;
    within(plot, (ctx) => {
        ctx.globalAlpha = 0.4;
        ctx.lineWidth = devicePixelRatio;
        for (const run of runs) {
            ctx.strokeStyle = colourOf(run.number);
            for (const { columns } of run.superseded) {
                const [xs, ys] = [columns[axis], smoothed(columns.iteration, columns[curve.key], curve.isSet ? 0 : smoothing)];
                ctx.beginPath();
                ys.forEach((y, place) => {
                    if (!Number.isFinite(y) || !Number.isFinite(xs[place]) || (logs.has(curve.key) && y <= 0)) return;
                    ctx.lineTo(plot.valToPos(xs[place], "x", true), plot.valToPos(y, "y", true));
                });
                ctx.stroke();
            }
        }
    });
};

// Which of these places have another one nearer than `least`: lines there would hide the curves.
export const crowded = (places, least) => {
    const sorted = [...new Set(places)].sort((a, b) => a - b);
    return new Set(sorted.filter((x, at) => x - sorted[at - 1] < least || sorted[at + 1] - x < least));
};

export const drawMarks = (plot, runs, { axis, kinds }) =>
    within(plot, (ctx, bbox) => {
        ctx.textBaseline = "alphabetic";
        ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
        for (const kind of LINES.filter((one) => kinds.has(one))) {
            const places = runs
                .flatMap((run) => run.marks.filter((mark) => mark.kind === kind).map((mark) => along(run, axis, mark.iteration)))
                .map((value) => plot.valToPos(value, "x", true))
                .filter((x) => x >= bbox.left && x <= bbox.left + bbox.width);
            const ticks = crowded(places, 4 * devicePixelRatio);
            for (const x of places) {
                ctx.strokeStyle = ctx.fillStyle = css(`--mark-${kind}`);
                ctx.lineWidth = devicePixelRatio;
                ctx.setLineDash(MARKS[kind].dash.map((one) => one * devicePixelRatio));
                ctx.beginPath();
                const isTick = kind === "checkpoint" || ticks.has(x);
                ctx.moveTo(x, bbox.top + (isTick ? bbox.height - 8 * devicePixelRatio : 0));
                ctx.lineTo(x, bbox.top + bbox.height);
                ctx.stroke();
                if (isTick) continue;
                const line = 11 + 11 * LINES.indexOf(kind);
                // Beside its line, and inside the frame.
                const isLast = x > bbox.left + bbox.width - 14 * devicePixelRatio;
                ctx.textAlign = isLast ? "right" : "left";
                ctx.fillText(MARKS[kind].letter, x + (isLast ? -3 : 3) * devicePixelRatio, bbox.top + line * devicePixelRatio);
            }
        }
    });
