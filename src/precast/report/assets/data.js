// The embedded data, unpacked, with derived values.

export async function unpack(id) {
  const element = document.getElementById(id);
  if (!element) return null;
  const packed = Uint8Array.from(atob(element.textContent), (each) => each.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  element.remove();
  return prepared(await new Response(stream).json());
}

function prepared(report) {
  report.graphs.forEach((graph, place) => {
    graph.place = place;
    graph.title = graphTitle(graph, report.graphs);
    graph.nodes.forEach((node, number) => Object.assign(node, { number, users: [] }));
    graph.nodes.forEach((node) => node.inputs.forEach((input) => graph.nodes[input].users.push(node.number)));
    graph.seconds = 0;
    graph.steps.forEach((step, number) => {
      Object.assign(step, { number, graph, started: graph.seconds });
      step.title = step.operators.join(", ") || step.name;
      graph.seconds += step.seconds;
    });
  });
  report.steps = report.graphs.flatMap((graph) => graph.steps);
  report.seconds = report.graphs.reduce((sum, graph) => sum + graph.seconds, 0);
  return report;
}

function graphTitle(graph, graphs) {
  const alike = graphs.filter((each) => each.kind === graph.kind);
  return alike.length > 1 ? `${graph.kind} ${alike.indexOf(graph) + 1}` : graph.kind;
}

export const lineOf = (report, number) => (number === null || number === undefined ? null : report.lines[number]);

// How close a step comes to the machine's peak; null if nothing was measured.
export function roofShare(report, step) {
  if (!report.peak || !step.seconds) return null;
  return Math.max(step.flops / report.peak.flops_a_second, step.moved / report.peak.bytes_a_second) / step.seconds;
}

// Live memory at each step of a graph, by kind.
export const HELD = ["state", "input", "tangent", "passed on", "saved", "gradient", "result", "temporary"];

export function memoryOver(graph) {
  const rows = graph.steps.map(() => Object.fromEntries(HELD.map((kind) => [kind, 0])));
  for (const buffer of graph.buffers) {
    for (let step = buffer.first; step <= buffer.last && step < rows.length; step += 1) rows[step][buffer.kind] += buffer.size;
  }
  return rows;
}

export function peakOf(graph) {
  const totals = memoryOver(graph).map((row) => HELD.reduce((sum, kind) => sum + row[kind], 0));
  const size = Math.max(0, ...totals);
  return { step: totals.indexOf(size), size };
}
