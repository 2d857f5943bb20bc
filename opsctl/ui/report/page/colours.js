// Colours as the style sheet has them now, for what is drawn on a canvas.
export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const colourOf = (number) => css(`--run-${number % 6}`);
