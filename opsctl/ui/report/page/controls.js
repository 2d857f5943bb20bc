// What is drawn and how: every control is the browser's own, so that keyboards, fingers and screen readers work them.
import { AXES, MARKS, has, page, whole } from "./data.js";

// Slider positions to iterations: 0, then by factors.
export const WINDOWS = [0, 3, 10, 30, 100, 300, 1000, 3000, 10000];
// The smoothing at first: about a hundredth of the longest run.
const longest = Math.max(0, ...page.runs.map((run) => run.columns.iteration.at(-1) ?? 0));
export const USUAL = WINDOWS.findLast((window) => window <= longest / 200) ?? 0;
const STEPS = 1000;

const made = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
};

const labelled = (text, input) => made("label", {}, `${text} `, input);

const group = (title, ...children) => {
    const set = made("fieldset", {}, made("legend", { textContent: title }), ...children);
    return set;
};

const tick = (text, checked, change, style = "") => {
    const box = made("input", { type: "checkbox", checked });
    box.addEventListener("change", () => change(box.checked));
    const label = made("label", { className: "tick" }, box, ` ${text}`);
    if (style) label.classList.add(style);
    return label;
};

const toggled = (set, value, isIn) => {
    if (isIn) set.add(value);
    else set.delete(value);
};

export class Controls {
    constructor(root, state, curves) {
        Object.assign(this, { root, state, curves });
        this.position = made("input", { type: "range", min: 0, max: STEPS, value: STEPS, id: "position" });
        this.where = made("output", { className: "where", htmlFor: "position" });
        state.moved = () => this.showPosition();
        state.zoomed = () => this.showPosition();
        state.redraw = () => this.redraw();
        const folded = made("details", { open: !matchMedia("(max-width: 40rem)").matches });
        folded.append(made("summary", { textContent: "Controls" }), this.axes(), this.look(), this.marks(), ...this.runs());
        root.append(folded, this.place());
    }

    redraw() {
        this.curves.draw();
        this.showPosition();
    }

    axes() {
        const choose = made("select", { id: "axis" });
        for (const [axis, title] of Object.entries(AXES)) {
            if (!page.runs.some((run) => has(run.columns[axis]))) continue;
            const isTrained = axis === "at_s" && page.runs.every((run) => ["trained", ""].includes(run.clock));
            choose.append(made("option", { value: axis, textContent: isTrained ? "hours of training" : title }));
        }
        choose.value = this.state.axis;
        choose.addEventListener("change", () => {
            Object.assign(this.state, { axis: choose.value, range: null, position: null });
            this.redraw();
        });
        return labelled("Along", choose);
    }

    look() {
        const window = made("input", { type: "range", id: "smoothing", min: 0, max: WINDOWS.length - 1 });
        const words = made("output", { htmlFor: "smoothing" });
        const tell = () => {
            words.textContent = this.state.smoothing ? `${whole(this.state.smoothing)} iterations` : "none";
            window.setAttribute("aria-valuetext", words.textContent);
        };
        window.value = WINDOWS.indexOf(this.state.smoothing);
        window.addEventListener("input", () => {
            this.state.smoothing = WINDOWS[window.value];
            tell();
            this.redraw();
        });
        tell();
        const theme = made("select", { id: "theme" });
        for (const name of ["auto", "light", "dark"]) theme.append(made("option", { value: name, textContent: name }));
        theme.value = this.state.theme;
        theme.addEventListener("change", () => {
            this.state.theme = theme.value;
            document.documentElement.dataset.theme = theme.value;
            this.redraw();
        });
        return made("div", { className: "look" }, labelled("Smoothing", window), words, labelled("Colours", theme));
    }

    marks() {
        const boxes = Object.entries(MARKS).flatMap(([kind, { title, letter }]) => {
            const of = (run) => (kind === "checkpoint" ? run.saves : run.marks.filter((mark) => mark.kind === kind).length);
            const count = page.runs.reduce((sum, run) => sum + of(run), 0);
            if (count === 0) return [];
            const change = (isOn) => {
                toggled(this.state.kinds, kind, isOn);
                this.redraw();
            };
            return [tick(`${letter} ${title} (${count})`, this.state.kinds.has(kind), change, `mark-${kind}`)];
        });
        const again = page.runs.reduce((sum, run) => sum + run.superseded_iterations, 0);
        if (again) {
            const change = (isOn) => {
                this.state.isAgain = isOn;
                this.redraw();
            };
            boxes.push(tick(`trained again (${whole(again)} iterations)`, this.state.isAgain, change, "again"));
        }
        const left = page.runs.reduce((sum, run) => sum + run.marks_left_out, 0);
        const note = left ? [made("p", { className: "note", textContent: `${whole(left)} older ones are left out` })] : [];
        return group("Marks", ...(boxes.length ? boxes : ["none"]), ...note);
    }

    runs() {
        if (page.runs.length < 2) return [];
        const boxes = page.runs.map((run) =>
            tick(
                run.name,
                !this.state.hidden.has(run.number),
                (isOn) => {
                    toggled(this.state.hidden, run.number, !isOn);
                    this.redraw();
                },
                `run-${run.number % 6}`,
            ),
        );
        return [group("Runs", ...boxes)];
    }

    place() {
        const button = (text, title, act) => {
            const one = made("button", { type: "button", textContent: text, title });
            one.setAttribute("aria-label", title);
            one.addEventListener("click", act);
            return one;
        };
        this.position.addEventListener("input", () => {
            const [low, high] = this.state.range ?? this.curves.bounds;
            this.state.position = low + (high - low) * (this.position.value / STEPS);
            this.curves.read(this.state.position);
            this.tell();
        });
        const buttons = [
            button("+", "Zoom in", () => this.zoomBy(0.5)),
            button("−", "Zoom out", () => this.zoomBy(2)),
            button("◀", "Earlier", () => this.shiftBy(-0.5)),
            button("▶", "Later", () => this.shiftBy(0.5)),
            button("Newest", "Zoom to the newest tenth", () => this.newest()),
            button("All", "Show all", () => this.curves.zoom(null)),
        ];
        const slider = labelled("Position", this.position);
        slider.className = "position";
        return made("div", { className: "place" }, slider, this.where, made("div", { className: "buttons" }, ...buttons));
    }

    zoomBy(factor) {
        const [low, high] = this.state.range ?? this.curves.bounds;
        const centre = this.state.position ?? (low + high) / 2;
        this.curves.within(centre - (centre - low) * factor, centre + (high - centre) * factor);
    }

    shiftBy(share) {
        const [low, high] = this.state.range ?? this.curves.bounds;
        const [first, last] = this.curves.bounds;
        const by = Math.max(first - low, Math.min(last - high, share * (high - low)));
        this.curves.within(low + by, high + by);
    }

    newest() {
        const [first, last] = this.curves.bounds;
        this.curves.within(last - (last - first) / 10, last);
    }

    showPosition() {
        const [low, high] = this.state.range ?? this.curves.bounds;
        const position = this.state.position ?? high;
        this.position.value = high > low ? Math.round((STEPS * (position - low)) / (high - low)) : STEPS;
        this.tell();
    }

    tell() {
        this.where.textContent = this.curves.spoken();
        this.position.setAttribute("aria-valuetext", this.where.textContent || "the newest");
        this.state.changed?.();
    }
}
