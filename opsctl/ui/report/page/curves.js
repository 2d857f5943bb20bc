// The curves: one uPlot for each quantity, all with one axis, one zoom and one position.
import { AXES, CURVES, along, axisWords, has, momentWords, page, placeOf, tickWords, whole, worded } from "./data.js";
import { colourOf, css } from "./colours.js";
import { drawMarks, drawSuperseded } from "./drawn.js";
import { pinchable } from "./touch.js";

const HEIGHT = 220;

// The running mean over about `window` iterations of a column: later values weigh more.
const smoothed = (iterations, column, window) => {
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

const yRange = (low, high, isLog) => {
    if (low === null || low === undefined) return [isLog ? 1 : 0, isLog ? 10 : 1];
    return isLog ? uPlot.rangeLog(low, high, 10, false) : uPlot.rangeNum(low, high, 0.1, true);
};

const drawable = (column, isLog) =>
    Array.from(column, (value) => (Number.isFinite(value) && (!isLog || value > 0) ? value : null));

export const curvesOf = (runs) => CURVES.filter(({ key }) => runs.some((run) => has(run.columns[key])));

export class Curves {
    constructor(root, state) {
        this.root = root;
        this.state = state;
        this.plots = [];
        this.heading = Object.assign(document.createElement("h2"), { textContent: "Curves", className: "unseen" });
        this.isFollowing = false;
        this.frame = null;
        new ResizeObserver(() => this.fit()).observe(root);
    }

    // The runs that are shown and known along the axis, and from where to where they go.
    choose() {
        const { axis, hidden } = this.state;
        this.runs = page.runs.filter((run) => !hidden.has(run.number) && has(run.columns[axis]));
        this.bounds = this.fromTo();
    }

    fromTo() {
        const { axis } = this.state;
        let [from, to] = [Infinity, -Infinity];
        for (const run of this.runs) {
            const column = run.columns[axis].filter((value) => !Number.isNaN(value));
            [from, to] = [Math.min(from, column[0]), Math.max(to, column[column.length - 1])];
        }
        return from < to ? [from, to] : [from - 1, from + 1];
    }

    draw() {
        for (const { plot } of this.plots) plot.destroy();
        this.root.replaceChildren(this.heading);
        this.choose();
        this.plots = curvesOf(this.runs).map((curve) => this.one(curve));
        this.read(this.state.position);
    }

    one(curve) {
        const figure = document.createElement("figure");
        const caption = document.createElement("figcaption");
        const title = document.createElement("h3");
        const source = Object.assign(document.createElement("p"), { className: "note", textContent: this.sourceOf(curve) });
        const reading = document.createElement("p");
        const canvas = document.createElement("div");
        title.textContent = curve.title;
        reading.className = "reading";
        canvas.className = "canvas";
        canvas.setAttribute("role", "img");
        caption.append(title, reading);
        figure.append(caption, canvas, ...(source.textContent ? [source] : []));
        figure.dataset.curve = curve.key;
        this.root.append(figure);
        const { series, tables, modes, readers } = this.series(curve);
        const plot = new uPlot(this.options(curve, series, canvas), uPlot.join(tables, modes), canvas);
        canvas.setAttribute("aria-label", this.inWords(curve));
        return { curve, plot, reading, readers };
    }

    series(curve) {
        const { axis, isLog } = this.state;
        const smoothing = curve.isSet ? 0 : this.state.smoothing;
        const [series, tables, modes, readers] = [[{}], [], [], []];
        const add = (all, values, style) => {
            // What is not known along the axis, as the time before the first line that tells one, is not drawn.
            const known = all.every((x) => !Number.isNaN(x)) ? null : all.map((x) => !Number.isNaN(x));
            const [xs, ys] = known ? [all, values].map((list) => list.filter((_, place) => known[place])) : [all, values];
            tables.push([xs, ys]);
            modes.push([0, 1]);
            series.push(style);
        };
        for (const run of this.runs) {
            const column = run.columns[curve.key];
            if (!has(column)) continue;
            const stroke = colourOf(run.number);
            const xs = Array.from(run.columns[axis]);
            const soft = smoothed(run.columns.iteration, column, smoothing);
            if (smoothing > 0) {
                add(xs, drawable(column, isLog), { stroke: `${stroke}50`, width: 1, points: { show: false }, spanGaps: false });
            }
            add(xs, drawable(soft, isLog), { stroke, width: 1.5, points: { show: false }, spanGaps: true });
            readers.push({ run, column, soft });
            if (curve.key !== "loss") continue;
            Object.entries(run.evaluations).forEach(([group, [iterations, losses]], number) => {
                const points = { show: true, size: 6 + 2 * (number % 3), fill: css(`--set-${number % 4}`), stroke };
                const line = { stroke: css(`--set-${number % 4}`), width: 1, dash: [4, 3], points, spanGaps: true };
                add(iterations.map((one) => along(run, axis, one)), drawable(losses, isLog), line);
                readers.push({ run, group, iterations, losses });
            });
        }
        return { series, tables, modes, readers };
    }

    options(curve, series, canvas) {
        const { axis, isLog, range } = this.state;
        const clock = this.runs[0]?.clock;
        const isTime = axis === "at_s" && clock !== "trained";
        const ink = { stroke: css("--ink"), grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid") } };
        const font = "12px system-ui, sans-serif";
        return {
            width: canvas.clientWidth || 300,
            height: HEIGHT,
            series,
            legend: { show: false },
            scales: {
                x: { time: isTime, range: (_, low, high) => range ?? (low < high ? [low, high] : [low - 1, high + 1]) },
                y: { distr: isLog ? 3 : 1, range: (_, low, high) => yRange(low, high, isLog) },
            },
            tzDate: (at) => (clock === "log" ? uPlot.tzDate(new Date(at * 1e3), "Etc/UTC") : new Date(at * 1e3)),
            axes: [
                {
                    ...ink,
                    font,
                    size: 34,
                    space: 70,
                    values: (_, ticks, __, ___, width) =>
                        ticks.map((one) => (isTime ? tickWords(one, width, clock) : worded(axis === "at_s" ? one / 3600 : one))),
                },
                { ...ink, font, size: 64, values: (_, ticks) => ticks.map((one) => (one === null ? "" : worded(one, 3))) },
            ],
            cursor: { drag: { x: true, y: false }, y: false, points: { size: 7 } },
            hooks: {
                drawAxes: [(plot) => drawSuperseded(plot, curve, this.runs, this.state)],
                draw: [(plot) => drawMarks(plot, this.runs, this.state)],
                setCursor: [(plot) => this.follow(plot)],
                setSelect: [
                    (plot) => {
                        const { left, width } = plot.select;
                        if (width > 3) this.zoom(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
                    },
                ],
                ready: [
                    (plot) => {
                        plot.over.addEventListener("dblclick", () => this.zoom(null));
                        pinchable(plot, (low, high) => this.within(low, high));
                    },
                ],
            },
        };
    }

    // The pointer over one curve moves the position of all.
    follow(plot) {
        if (this.isFollowing || !(plot.cursor.left >= 0)) return;
        this.state.position = plot.posToVal(plot.cursor.left, "x");
        // However often the pointer moves, once a frame.
        this.frame ??= requestAnimationFrame(() => {
            this.frame = null;
            this.read(this.state.position, plot);
            this.state.moved?.();
        });
    }

    read(position, from = null) {
        this.isFollowing = true;
        for (const { curve, plot, reading, readers } of this.plots) {
            if (plot !== from) {
                const left = position === null ? -10 : plot.valToPos(position, "x");
                plot.setCursor({ left, top: plot.over.clientHeight / 2 });
            }
            reading.textContent = this.told(curve, readers, position);
        }
        this.isFollowing = false;
    }

    told(curve, readers, position) {
        const { axis } = this.state;
        const smoothing = curve.isSet ? 0 : this.state.smoothing;
        const isOne = this.runs.length === 1;
        const words = readers.map(({ run, group, column, soft, iterations, losses }) => {
            const name = isOne ? "" : `${run.name} `;
            const last = run.columns[axis].length - 1;
            const place = position === null ? last : placeOf(run.columns[axis], position);
            if (group !== undefined) {
                const at = placeOf(iterations, run.columns.iteration[place]);
                return `${name}${group} ${worded(losses[at], curve.digits)}`;
            }
            const mean = smoothing > 0 ? ` (mean ${worded(soft[place], curve.digits)})` : "";
            return `${name}${worded(column[place], curve.digits)}${curve.unit ? ` ${curve.unit}` : ""}${mean}`;
        });
        return words.join(" · ");
    }

    // What a curve shows, for who cannot see it.
    inWords(curve) {
        return this.runs
            .filter((run) => has(run.columns[curve.key]))
            .map((run) => {
                const column = run.columns[curve.key].filter((value) => !Number.isNaN(value));
                const [low, high] = column.reduce(([low, high], one) => [Math.min(low, one), Math.max(high, one)], [Infinity, -Infinity]);
                const ends = `from ${worded(column[0], curve.digits)} to ${worded(column[column.length - 1], curve.digits)}`;
                const again = this.state.isAgain && run.superseded.some(({ columns }) => has(columns[curve.key])) ? "; what was trained again is faint beneath" : "";
                return `${curve.title} of ${run.name}: ${ends}, between ${worded(low, curve.digits)} and ${worded(high, curve.digits)}${again}`;
            })
            .join("; ");
    }

    // What a curve was reckoned from that no log tells.
    sourceOf(curve) {
        const runs = this.runs.filter((run) => run.sources[curve.key]);
        return runs.map((run) => `${this.runs.length > 1 ? `${run.name}: ` : ""}${run.sources[curve.key]}`).join("; ");
    }

    // What stands at the position, for the control that moves it.
    spoken() {
        const { axis, position } = this.state;
        const run = this.runs[0];
        if (run === undefined || position === null) return "";
        const place = placeOf(run.columns[axis], position);
        const at = axisWords(run.columns[axis][place], axis, run.clock);
        const also = axis === "iteration" ? "" : `, iteration ${whole(run.columns.iteration[place])}`;
        const time = axis === "at_s" || run.clock === "" ? "" : `, ${momentWords(run.columns.at_s[place], run.clock)}`;
        return `${at}${also}${time}`;
    }

    // Shows from one value of the axis to another; null: all of it.
    zoom(from, to) {
        this.state.range = from === null ? null : [Math.min(from, to), Math.max(from, to)];
        const [low, high] = this.state.range ?? this.bounds;
        this.isFollowing = true;
        for (const { plot } of this.plots) {
            plot.batch(() => {
                plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
                plot.setScale("x", { min: low, max: high });
            });
        }
        this.isFollowing = false;
        this.state.zoomed?.();
    }

    // The same, no further than the runs go.
    within(low, high) {
        const [first, last] = this.bounds;
        if (low <= first && high >= last) this.zoom(null);
        else this.zoom(Math.max(first, low), Math.min(last, high));
    }

    fit() {
        for (const { plot } of this.plots) {
            const width = plot.root.parentElement.clientWidth;
            if (width > 0 && width !== plot.width) plot.setSize({ width, height: HEIGHT });
        }
    }
}

export const axisName = (axis) => AXES[axis];
