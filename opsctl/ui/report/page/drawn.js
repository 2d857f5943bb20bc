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

export const drawSuperseded = (plot, curve, runs, { axis, isLog, isAgain }) => {
    if (!isAgain) return;
    within(plot, (ctx) => {
        ctx.globalAlpha = 0.4;
        ctx.lineWidth = devicePixelRatio;
        for (const run of runs) {
            ctx.strokeStyle = colourOf(run.number);
            for (const { columns } of run.superseded) {
                const [xs, ys] = [columns[axis], columns[curve.key]];
                ctx.beginPath();
                ys.forEach((y, place) => {
                    if (!Number.isFinite(y) || !Number.isFinite(xs[place]) || (isLog && y <= 0)) return;
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
