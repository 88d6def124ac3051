// Tensors between the form and the protocol: JSON texts and files in, binary tensors out.

export const MOST_SHOWN = 128; // elements of an output that is shown in full
const ENDS = 6; // of a larger one, elements at each end
const SAMPLE_MOST = 512; // elements of a sample that is written out
const MOST_ZEROS = 20_000_000;
const ZEROS = /^zeros\s*\(\s*(\d+(?:\s*,\s*\d+)*)?\s*\)$/;

const READERS = {
  BOOL: [1, (view, at) => view.getUint8(at) !== 0],
  UINT8: [1, (view, at) => view.getUint8(at)],
  UINT16: [2, (view, at) => view.getUint16(at, true)],
  UINT32: [4, (view, at) => view.getUint32(at, true)],
  UINT64: [8, (view, at) => view.getBigUint64(at, true)],
  INT8: [1, (view, at) => view.getInt8(at)],
  INT16: [2, (view, at) => view.getInt16(at, true)],
  INT32: [4, (view, at) => view.getInt32(at, true)],
  INT64: [8, (view, at) => view.getBigInt64(at, true)],
  FP16: [2, (view, at) => half(view.getUint16(at, true))],
  BF16: [2, (view, at) => single(view.getUint16(at, true) << 16)],
  FP32: [4, (view, at) => view.getFloat32(at, true)],
  FP64: [8, (view, at) => view.getFloat64(at, true)],
};
const DIGITS = { FP16: 4, BF16: 3, FP32: 7 };

const product = (shape) => shape.reduce((all, length) => all * length, 1);
export const shapeText = (shape) => `[${shape.map((length) => (length < 0 ? "any" : length)).join(", ")}]`;
const concrete = (shape) => shape.map((length) => (length < 0 ? 1 : length));

/** A small valid input: zeros of the stated shape, 1 for any length. Larger ones are written as zeros(...). */
export function sample(input) {
  const shape = concrete(input.shape);
  if (product(shape) > SAMPLE_MOST) return `zeros(${shape.join(", ")})`;
  return JSON.stringify(nest(Array(product(shape)).fill(input.datatype === "BOOL" ? false : 0), shape));
}

function nest(flat, shape) {
  if (shape.length < 2) return shape.length === 0 ? flat[0] : flat;
  const step = flat.length / shape[0];
  return Array.from({ length: shape[0] }, (_, i) => nest(flat.slice(i * step, (i + 1) * step), shape.slice(1)));
}

/** A numeric input as JSON text: {shape, data}. Numbers stay as they are written, because 64 bits do not fit a double. */
export function numbers(text, input) {
  const zeros = ZEROS.exec(text.trim());
  if (zeros) {
    const shape = (zeros[1] ?? "").split(",").filter(Boolean).map(Number);
    if (product(shape) > MOST_ZEROS) throw new Error(`${input.name}: this page sends at most ${MOST_ZEROS} zeros`);
    return { shape, data: `[${Array(product(shape)).fill(input.datatype === "BOOL" ? "false" : "0").join(",")}]` };
  }
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error(`${input.name}: this is not JSON; write numbers such as [1, 2.5], or press Sample`);
  }
  const found = Array.isArray(value) ? lengths(value) : [];
  return { shape: fit(found, input), data: Array.isArray(value) ? text : `[${text}]` };
}

function lengths(value) {
  return Array.isArray(value) ? [value.length, ...(value.length ? lengths(value[0]) : [])] : [];
}

/** The shape of a request: as the lists are nested, or as the model states it if they are flat. */
function fit(found, input) {
  const stated = input.shape;
  if (found.length === stated.length || found.length !== 1) return found;
  const free = stated.filter((length) => length < 0).length;
  const rest = product(stated.filter((length) => length >= 0));
  if (free === 0) return stated;
  if (found[0] % rest !== 0) throw new Error(`${input.name}: ${found[0]} numbers do not fill ${shapeText(stated)}`);
  return stated.map((length, i) => (length >= 0 ? length : i === stated.findIndex((each) => each < 0) ? found[0] / rest : 1));
}

/** BYTES elements as a binary tensor: each has its length before it. */
export function elements(parts) {
  const made = [];
  for (const part of parts) {
    const length = new DataView(new ArrayBuffer(4));
    length.setUint32(0, part.byteLength, true);
    made.push(length.buffer, part);
  }
  return new Blob(made);
}

/** The shape of that many BYTES elements under a stated shape. */
export function shapeOfTexts(input, many) {
  const shape = concrete(input.shape);
  const first = input.shape.indexOf(-1);
  if (first >= 0 && many > 1) shape[first] = many;
  return shape;
}

/** How many texts an input takes: null for any number. */
export function textsOf(input) {
  return input.shape.includes(-1) ? null : product(input.shape);
}

/** The outputs of an answer whose JSON is `header` and whose binary tensors follow in `rest`. */
export function outputs(header, rest) {
  let at = 0;
  return header.outputs.map((output) => {
    const size = output.parameters?.binary_data_size;
    if (size === undefined) return { ...output, size: product(output.shape), read: (i) => output.data[i] };
    const view = new DataView(rest, at, size);
    at += size;
    return { ...output, ...reader(output, view) };
  });
}

function reader(output, view) {
  const size = product(output.shape);
  if (output.datatype !== "BYTES") {
    const [width, read] = READERS[output.datatype];
    return { size, read: (i) => read(view, i * width) };
  }
  const starts = [];
  for (let at = 0; starts.length < size; at += 4 + view.getUint32(at, true)) starts.push(at);
  const bytesOf = (i) => new Uint8Array(view.buffer, view.byteOffset + starts[i] + 4, view.getUint32(starts[i], true));
  return { size, read: (i) => text(bytesOf(i)) };
}

function text(raw) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(raw);
  } catch {
    return { bytes: raw.byteLength };
  }
}

function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

function single(bits) {
  const view = new DataView(new ArrayBuffer(4));
  view.setInt32(0, bits);
  return view.getFloat32(0);
}

/** One value as text. */
export function valueText(output, value) {
  if (typeof value === "string") return JSON.stringify(value);
  if (value !== null && typeof value === "object") return `<${value.bytes} bytes>`;
  const digits = DIGITS[output.datatype];
  return digits && Number.isFinite(value) ? String(Number(value.toPrecision(digits))) : String(value);
}

/** A tensor as text: all of a small one, nested by its shape; the ends of a large one. */
export function tensorText(output) {
  const say = (i) => valueText(output, output.read(i));
  if (output.size > MOST_SHOWN) {
    const ends = (from) => Array.from({ length: ENDS }, (_, i) => say(from + i)).join(", ");
    return `[${ends(0)}, …, ${ends(output.size - ENDS)}]`;
  }
  const nested = (shape, from) => {
    if (shape.length === 0) return say(from);
    const step = product(shape.slice(1));
    const parts = Array.from({ length: shape[0] }, (_, i) => nested(shape.slice(1), from + i * step));
    return `[${parts.join(shape.length > 1 ? ",\n " : ", ")}]`;
  };
  return nested(output.shape, 0);
}

/** Least, largest and mean of a large tensor of numbers; null for any other. */
export function summary(output) {
  if (output.size <= MOST_SHOWN || output.datatype === "BYTES" || output.datatype === "BOOL") return null;
  let [least, most, sum, odd, at] = [Infinity, -Infinity, 0, 0, 0];
  for (let i = 0; i < output.size; i += 1) {
    const value = Number(output.read(i));
    if (!Number.isFinite(value)) { odd += 1; continue; }
    sum += value;
    if (value < least) least = value;
    if (value > most) [most, at] = [value, i];
  }
  if (odd === output.size) return { odd };
  return { least, most, at, mean: sum / (output.size - odd), odd };
}
