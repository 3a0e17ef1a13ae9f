// Two ways to paint points: WebGL for folders, and a plain canvas for a single file or where there is no WebGL.
// Both paint every stride-th point of some runs, from an offset on: a frame that is short of time paints a part of the
// points, evenly spread along the Z-order curve, and later frames add the others.

// RGBA of each point; an alpha of 0 hides it.
const tints = new Uint8Array(4 * count).fill(255);

const plainPainter = (canvas) => {
  const pen = canvas.getContext("2d");
  // A file's points come in their own order: painted in a scattered one, no class lies on top of all others.
  const order = inFolder ? null : Uint32Array.from({ length: count }, (_, i) => i);
  for (let i = order ? count - 1 : 0, seed = 1; i > 0; i--) {
    seed = (seed * 48271) % 2147483647;
    const j = seed % (i + 1);
    [order[i], order[j]] = [order[j], order[i]];
  }
  const stamp = (colour, radius, ratio) => {
    const one = document.createElement("canvas");
    one.width = one.height = Math.ceil(2 * (radius + 1) * ratio);
    const ink = one.getContext("2d");
    ink.fillStyle = `rgb(${colour >> 16} ${(colour >> 8) & 255} ${colour & 255})`;
    ink.beginPath();
    ink.arc(one.width / 2, one.height / 2, radius * ratio, 0, 7);
    ink.fill();
    return one;
  };
  return {
    ink: pen, perFrame: inFolder ? 15_000 : Infinity, least: inFolder ? 4_000 : Infinity, most: 256,
    recolour() {},
    resize() {},
    clear() { pen.clearRect(0, 0, width, height); },
    paint(runs, stride, offset, radius) {
      const stamps = new Map(), ratio = window.devicePixelRatio || 1, side = Math.ceil(2 * (radius + 1) * ratio) / ratio;
      for (const [start, end] of runs)
        for (let k = start + offset; k < end; k += stride) {
          const i = order ? order[k] : k, alpha = tints[4 * i + 3];
          if (!alpha) continue;
          const x = toX(i), y = toY(i);
          if (x < -side || y < -side || x > width + side || y > height + side) continue;
          const colour = (tints[4 * i] << 16) | (tints[4 * i + 1] << 8) | tints[4 * i + 2];
          if (!stamps.has(colour)) stamps.set(colour, stamp(colour, radius, ratio));
          pen.globalAlpha = alpha / 255;
          pen.drawImage(stamps.get(colour), x - side / 2, y - side / 2, side, side);
        }
      pen.globalAlpha = 1;
    },
  };
};

const VERTEX = `#version 300 es
in vec2 place; in vec4 tint; out vec4 colour;
uniform vec2 centre, zoom; uniform float size;
void main() {
  gl_Position = vec4(tint.a > 0.0 ? (place - centre) * zoom : vec2(9.0), 0.0, 1.0);
  gl_PointSize = size;
  colour = vec4(tint.rgb * tint.a, tint.a);
}`;
const FRAGMENT = `#version 300 es
precision highp float;
in vec4 colour; out vec4 ink; uniform float size;
void main() {
  float beyond = length(gl_PointCoord - 0.5) * size - 0.5 * size + 1.0;
  if (size > 2.5 && beyond > 1.0) discard;
  ink = size > 2.5 ? colour * min(1.0, 1.0 - beyond) : colour;
}`;

// null where there is no WebGL 2. Pictures from disk cannot be textures: thumbnails go onto a plain canvas above.
const webglPainter = (canvas, over) => {
  const gl = canvas.getContext("webgl2", { alpha: false, antialias: false, depth: false, preserveDrawingBuffer: true });
  if (!gl) return null;
  let buffers, at, program;
  const start = () => {
    program = gl.createProgram();
    for (const [kind, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS) && !gl.isContextLost()) return false;
    gl.useProgram(program);
    buffers = { place: gl.createBuffer(), tint: gl.createBuffer() };
    at = {};
    for (const name of ["place", "tint"]) gl.enableVertexAttribArray(at[name] = gl.getAttribLocation(program, name));
    for (const name of ["centre", "zoom", "size"]) at[name] = gl.getUniformLocation(program, name);
    gl.bindBuffer(gl.ARRAY_BUFFER, buffers.place);
    gl.bufferData(gl.ARRAY_BUFFER, places, gl.STATIC_DRAW);
    gl.bindBuffer(gl.ARRAY_BUFFER, buffers.tint);
    gl.bufferData(gl.ARRAY_BUFFER, tints, gl.DYNAMIC_DRAW);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    return true;
  };
  if (!start()) return null;
  canvas.addEventListener("webglcontextlost", (event) => event.preventDefault());
  canvas.addEventListener("webglcontextrestored", () => { start(); draw(); });
  return {
    ink: over.getContext("2d"), layered: true, perFrame: 100_000, least: 20_000,
    most: 31, // the stride of an attribute is at most 255 bytes
    recolour() {
      gl.bindBuffer(gl.ARRAY_BUFFER, buffers.tint);
      gl.bufferSubData(gl.ARRAY_BUFFER, 0, tints);
    },
    resize() { gl.viewport(0, 0, canvas.width, canvas.height); },
    clear() {
      const paper = getComputedStyle(document.documentElement).getPropertyValue("--paper").trim();
      gl.clearColor(...rgb(paper).map((one) => one / 255), 1);
      gl.clear(gl.COLOR_BUFFER_BIT);
      if (!over.hidden) this.ink.clearRect(0, 0, width, height);
    },
    paint(runs, stride, offset, radius) {
      gl.uniform2f(at.centre, ...centre);
      gl.uniform2f(at.zoom, 2 * scale / width, 2 * scale / height);
      gl.uniform1f(at.size, Math.max(1, 2 * radius * (window.devicePixelRatio || 1)));
      for (const [from, to] of runs) {
        const some = Math.ceil((to - from - offset) / stride);
        if (some <= 0) continue;
        gl.bindBuffer(gl.ARRAY_BUFFER, buffers.place);
        gl.vertexAttribPointer(at.place, 2, gl.FLOAT, false, 8 * stride, 8 * (from + offset));
        gl.bindBuffer(gl.ARRAY_BUFFER, buffers.tint);
        gl.vertexAttribPointer(at.tint, 4, gl.UNSIGNED_BYTE, true, 4 * stride, 4 * (from + offset));
        gl.drawArrays(gl.POINTS, 0, some);
      }
    },
  };
};
