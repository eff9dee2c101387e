// The pictures of the Learn pages: <div class="picture" data-picture="lookup">. Each function gets
// its box, adds controls and a canvas, and draws anew when a control changes.
"use strict";

const pictures = (() => {
  const d = drawing;
  const TOKENS = ["the", "cat", "sat", "on", "the", "mat"];

  function fresh(svg) {
    while (svg.firstChild) svg.firstChild.remove();
  }

  function lookup(box) {
    const angles = [20, 75, 130, 200, 300];
    const values = [1, 2, 3, 4, 5];
    const how = d.choice(box, "lookup", ["softmax", "nearest", "top 2", "exact"], show);
    const angle = d.slider(box, "angle of the query", [0, 360, 5, 95], show);
    const length = d.slider(box, "its length", [0.5, 8, 0.5, 2], show);
    const svg = d.canvas(box, 480, 200, "A query among five keys, and the weights of their values");
    const text = d.says(box);

    function weights(scores) {
      const order = scores.map((_, i) => i).sort((a, b) => scores[b] - scores[a]);
      if (how.value === "softmax") return d.softmax(scores);
      if (how.value === "nearest") return scores.map((_, i) => Number(i === order[0]));
      if (how.value === "top 2") return scores.map((_, i) => (order.indexOf(i) < 2 ? 0.5 : 0));
      return angles.map((key) => Number(key === angle.value % 360 && length.value === 1));
    }

    function arrow(degrees, size, kind, name) {
      const turn = (degrees * Math.PI) / 180;
      const x = 95 + size * Math.cos(turn);
      const y = 100 - size * Math.sin(turn);
      d.add(svg, "line", { x1: 95, y1: 100, x2: x, y2: y, class: kind });
      d.label(svg, 95 + (size + 12) * Math.cos(turn) - 6, 104 - (size + 12) * Math.sin(turn), name);
    }

    function show() {
      fresh(svg);
      const scores = angles.map((key) =>
        length.value * Math.cos(((key - angle.value) * Math.PI) / 180));
      const found = weights(scores);
      angles.forEach((key, i) => arrow(key, 60, "line", `k${i + 1}`));
      arrow(angle.value, 75, "strong", "q");
      d.bars(svg, found, values.map((v, i) => `v${i + 1} = ${v}`), { x: 240, y: 40, width: 170 });
      const result = d.dot(found, values);
      text.textContent = how.value === "exact" && result === 0
        ? "No key equals the query (keys have length 1): the result is 0."
        : `The result is ${result.toFixed(3)}. ${how.value === "softmax"
          ? "A small turn of the query changes it a little: this lookup can be learned."
          : "A small turn of the query changes nothing, or everything: there is no gradient."}`;
    }

    show();
  }

  function scores(box) {
    const width = d.slider(box, "width d = 2 to the power of", [0, 10, 1, 6], show);
    const kind = d.choice(box, "score", ["dot", "scaled"], show);
    const svg = d.canvas(box, 400, 190, "Softmax weights of eight random keys");
    const text = d.says(box);

    function show() {
      fresh(svg);
      const size = 2 ** width.value;
      const uniform = d.random(7);
      const keys = Array.from({ length: 9 }, () =>
        Array.from({ length: size }, () => d.normal(uniform)));
      const divisor = kind.value === "scaled" ? Math.sqrt(size) : 1;
      const found = keys.slice(1).map((key) => d.dot(keys[0], key) / divisor);
      const weights = d.softmax(found);
      d.bars(svg, weights, found.map((score, i) => `<q, k${i + 1}> ${score.toFixed(1)}`), { x: 110 });
      const most = Math.max(...weights);
      text.textContent = `d = ${size}: random scores have a standard deviation of about ` +
        `${kind.value === "scaled" ? "1" : Math.sqrt(size).toFixed(1)}. The largest weight is ` +
        `${most.toFixed(3)}, and the derivative of its softmax ${(most * (1 - most)).toExponential(1)}.`;
    }

    show();
  }

  function selfAttention(box) {
    const uniform = d.random(3);
    const vectors = new Map(["cats", "chase", "mice", "dogs"].map((token) =>
      [token, Array.from({ length: 3 }, () => d.normal(uniform))]));
    let order = [...vectors.keys()];
    d.button(box, "shuffle the tokens", () => {
      order = [order[2], order[0], order[3], order[1]];
      show();
    });
    const svg = d.canvas(box, 480, 195, "Weights of self-attention, and the output of each token");
    const text = d.says(box);

    function show() {
      fresh(svg);
      const X = order.map((token) => vectors.get(token));
      const weights = X.map((x) => d.softmax(X.map((y) => d.dot(x, y))));
      d.heat(svg, weights, { across: order, down: order, cell: 40, x: 60 });
      order.forEach((token, i) => {
        const output = [0, 1, 2].map((e) => d.dot(weights[i], X.map((x) => x[e])));
        const numbers = output.map((value) => value.toFixed(2)).join("  ");
        d.label(svg, 240, 48 + 40 * i, `${token}: ${numbers}`);
      });
      text.textContent = "Rows are queries, columns keys. Shuffle: the outputs move with their " +
        "tokens, and their numbers stay. Attention without positions reads a set.";
    }

    show();
  }

  function masks(box) {
    const kind = d.choice(box, "mask", ["causal", "none", "window", "causal and padding"], show);
    const size = d.slider(box, "window or length", [1, 6, 1, 4], show);
    const svg = d.canvas(box, 420, 200, "Which query may attend to which key");
    const text = d.says(box);

    function allows(q, k) {
      if (kind.value === "none") return true;
      if (kind.value === "window") return Math.abs(q - k) < size.value;
      return k <= q && (kind.value === "causal" || k < size.value);
    }

    function show() {
      fresh(svg);
      const uniform = d.random(11);
      const all = TOKENS.map(() => TOKENS.map(() => d.normal(uniform)));
      const rows = all.map((row, q) => {
        const weights = d.softmax(row.map((score, k) => (allows(q, k) ? score : -1e9)));
        return weights.map((weight, k) => (allows(q, k) ? weight : null));
      });
      d.heat(svg, rows, { across: TOKENS, down: TOKENS });
      const seen = rows.flat().filter((value) => value !== null).length;
      text.textContent = `${seen} of 36 pairs remain. A hidden pair gets the score minus infinity ` +
        "before the softmax, so that every row still sums to 1.";
    }

    show();
  }

  function multiHead(box) {
    const heads = 8;
    const power = d.slider(box, "key-value heads = 2 to the power of", [0, 3, 1, 1], show);
    const svg = d.canvas(box, 460, 130, "Which key-value head each query head reads");
    const text = d.says(box);

    function show() {
      fresh(svg);
      const kv = 2 ** power.value;
      for (let h = 0; h < heads; h += 1) {
        const group = Math.floor(h / (heads / kv));
        const x = 40 + h * 54;
        const to = 40 + (group + 0.5) * (8 * 54 / kv) - 27;
        d.add(svg, "line", { x1: x, y1: 32, x2: to, y2: 96, class: "line" });
        d.add(svg, "circle", { cx: x, cy: 24, r: 9, class: "fill" });
        d.label(svg, x, 12, `q${h}`, { "text-anchor": "middle" });
      }
      for (let k = 0; k < kv; k += 1) {
        const x = 40 + (k + 0.5) * (8 * 54 / kv) - 27;
        d.add(svg, "rect", { x: x - 9, y: 96, width: 18, height: 18, class: "second" });
        d.label(svg, x + 14, 110, `k${k}, v${k}`);
      }
      const name = { 8: "Multi-head", 1: "Multi-query" }[kv] || "Grouped-query";
      text.textContent = `${name} attention: ${heads} query heads, kv_heads = ${kv}. The KV cache ` +
        `has ${((100 * kv) / heads).toFixed(1)}% of the size it has with multi-head attention.`;
    }

    show();
  }

  function positions(box) {
    const kind = d.choice(box, "encoding", ["sinusoidal", "rotary", "ALiBi"], show);
    const query = d.slider(box, "position of the query", [0, 31, 1, 12], show);
    const svg = d.canvas(box, 460, 190, "How a score depends on the positions of query and key");
    const text = d.says(box);
    const width = 32;

    function encode(p) {
      return Array.from({ length: width }, (_, i) => {
        const angle = p / 10000 ** ((2 * Math.floor(i / 2)) / width);
        return i % 2 ? Math.cos(angle) : Math.sin(angle);
      });
    }

    function score(q, k) {
      if (kind.value === "ALiBi") return k > q ? null : 1 - 0.25 * (q - k) / 4;
      if (kind.value === "sinusoidal") return d.dot(encode(q), encode(k)) / (width / 2);
      let sum = 0;
      for (let i = 0; i < width / 2; i += 1) sum += Math.cos((q - k) / 10000 ** ((2 * i) / width));
      return sum / (width / 2);
    }

    function show() {
      fresh(svg);
      const points = [];
      for (let k = 0; k < 32; k += 1) {
        const value = score(query.value, k);
        if (value !== null) points.push([40 + 12.5 * k, 150 - 120 * Math.max(value, -0.2)]);
      }
      d.add(svg, "line", { x1: 40, y1: 150, x2: 430, y2: 150, class: "line" });
      d.curve(svg, points);
      const x = 40 + 12.5 * query.value;
      d.add(svg, "line", { x1: x, y1: 20, x2: x, y2: 156, class: "line" });
      d.label(svg, x, 172, `query at ${query.value}`, { "text-anchor": "middle" });
      d.label(svg, 430, 172, "key", { "text-anchor": "end", class: "faint" });
      text.textContent = {
        sinusoidal: "The product of two encodings falls with the distance, the same way from every position.",
        rotary: "Query and key are turned by angles in proportion to their positions; of equal vectors " +
          "the score depends on the distance alone.",
        ALiBi: "A slope for each head times the distance is subtracted from the score; later keys are masked.",
      }[kind.value];
    }

    show();
  }

  function block(box) {
    const base = [0.4, -0.9, 1.3, 0.1, -0.5, 0.8];
    const scale = d.slider(box, "scale of x", [0.5, 5, 0.5, 1], show);
    const shift = d.slider(box, "shift of x", [-3, 3, 0.5, 0], show);
    const svg = d.canvas(box, 440, 190, "A vector before and after layer normalisation");
    const text = d.says(box);

    function columns(values, x, name) {
      d.label(svg, x, 14, name);
      d.add(svg, "line", { x1: x, y1: 100, x2: x + 170, y2: 100, class: "line" });
      values.forEach((value, i) => {
        const size = Math.min(85, Math.abs(value) * 24);
        const y = value > 0 ? 100 - size : 100;
        d.add(svg, "rect", { x: x + 4 + i * 28, y, width: 20, height: size, class: "fill" });
      });
    }

    function show() {
      fresh(svg);
      const x = base.map((value) => scale.value * value + shift.value);
      const mean = x.reduce((a, b) => a + b, 0) / x.length;
      const variance = x.reduce((a, b) => a + (b - mean) ** 2, 0) / x.length;
      columns(x, 20, "x");
      columns(x.map((value) => (value - mean) / Math.sqrt(variance + 1e-5)), 240, "LayerNorm(x)");
      text.textContent = `Mean ${mean.toFixed(2)}, standard deviation ${Math.sqrt(variance).toFixed(2)} ` +
        "before; 0 and 1 after. The residual x passes beside the norm, with its scale.";
    }

    show();
  }

  function bytePairs(box) {
    const typed = d.field(box, "text", "low lower lowest, new newer newest", show);
    const merges = d.slider(box, "merges", [0, 20, 1, 4], show);
    const svg = d.canvas(box, 480, 110, "The text as tokens");
    const text = d.says(box);

    function merge(tokens, pair) {
      const merged = [];
      for (let i = 0; i < tokens.length; i += 1) {
        const fits = tokens[i] === pair[0] && tokens[i + 1] === pair[1];
        merged.push(fits ? tokens[i] + tokens[(i += 1)] : tokens[i]);
      }
      return merged;
    }

    function mostFrequent(tokens) {
      const counts = new Map();
      for (let i = 0; i + 1 < tokens.length; i += 1) {
        const key = JSON.stringify([tokens[i], tokens[i + 1]]);
        counts.set(key, (counts.get(key) || 0) + 1);
      }
      const best = [...counts].sort((a, b) => b[1] - a[1])[0];
      return best && best[1] > 1 ? [JSON.parse(best[0]), best[1]] : null;
    }

    function show() {
      fresh(svg);
      let tokens = [...typed.value];
      const learned = [];
      for (let n = 0; n < merges.value; n += 1) {
        const found = mostFrequent(tokens);
        if (!found) break;
        learned.push(`${found[0].join("+")} (${found[1]} times)`);
        tokens = merge(tokens, found[0]);
      }
      let x = 8;
      let y = 8;
      tokens.forEach((token, i) => {
        const width = 10 + 7.5 * token.length;
        if (x + width > 474) [x, y] = [8, y + 30];
        const place = { x, y, width: width - 2, height: 24, rx: 3, "fill-opacity": 0.25 };
        d.add(svg, "rect", { ...place, class: i % 2 ? "second" : "fill" });
        d.label(svg, x + width / 2 - 1, y + 16, token.replace(/ /g, "␣"), { "text-anchor": "middle" });
        x += width;
      });
      text.textContent = `${tokens.length} tokens. Merges: ${learned.join(", ") || "none yet"}.`;
    }

    show();
  }

  function gpt(box) {
    const V = d.slider(box, "vocabulary", [256, 50432, 256, 1024], show);
    const E = d.slider(box, "width", [32, 1024, 32, 128], show);
    const L = d.slider(box, "depth", [1, 24, 1, 4], show);
    const svg = d.canvas(box, 460, 130, "Each position predicts the token after it");
    const text = d.says(box);

    function show() {
      fresh(svg);
      TOKENS.slice(0, 5).forEach((token, i) => {
        const x = 60 + 84 * i;
        d.label(svg, x, 118, token, { "text-anchor": "middle" });
        d.label(svg, x, 20, TOKENS[i + 1], { "text-anchor": "middle", class: "faint" });
        for (let j = 0; j <= i; j += 1) {
          d.add(svg, "line", { x1: 60 + 84 * j, y1: 102, x2: x, y2: 66, class: "line" });
        }
        d.add(svg, "circle", { cx: x, cy: 62, r: 6, class: "fill" });
        d.add(svg, "line", { x1: x, y1: 54, x2: x, y2: 28, class: "strong" });
      });
      const blocks = L.value * (12 * E.value ** 2 + 13 * E.value);
      const embeddings = V.value * E.value + 1024 * E.value;
      const all = blocks + embeddings + 2 * E.value;
      text.textContent = `${all.toLocaleString("en")} parameters with a context of 1,024: ` +
        `${((100 * blocks) / all).toFixed(0)}% in the blocks, the rest in embeddings. The output ` +
        "layer is the token embedding again.";
    }

    show();
  }

  function trainingStep(box) {
    const steps = d.slider(box, "steps", [100, 1000, 100, 400], show);
    const warmup = d.slider(box, "warm-up", [1, 100, 1, 40], show);
    const last = d.slider(box, "final rate", [0, 1, 0.05, 0.1], show);
    const svg = d.canvas(box, 460, 170, "The learning rate by step");
    const text = d.says(box);

    function rate(step) {
      if (step < warmup.value) return (step + 1) / warmup.value;
      const progress = (step - warmup.value + 1) / Math.max(1, steps.value - warmup.value);
      return last.value + ((1 - last.value) * (1 + Math.cos(Math.PI * progress))) / 2;
    }

    function show() {
      fresh(svg);
      const points = [];
      for (let step = 0; step < steps.value; step += 1) {
        points.push([40 + (400 * step) / 1000, 140 - 120 * rate(step)]);
      }
      d.add(svg, "line", { x1: 40, y1: 140, x2: 440, y2: 140, class: "line" });
      d.curve(svg, points);
      d.label(svg, 34, 24, "1", { "text-anchor": "end" });
      d.label(svg, 34, 144, "0", { "text-anchor": "end" });
      d.label(svg, 440, 158, "step 1,000", { "text-anchor": "end" });
      text.textContent = "The learning rate as a part of the highest: linear warm-up, then half a " +
        `cosine to ${last.value} of it at step ${steps.value}.`;
    }

    show();
  }

  function generation(box) {
    const names = ["mat", "sofa", "floor", "roof", "moon", "idea"];
    const logits = [2.2, 1.7, 1.2, 0.4, -0.6, -1.8];
    const temperature = d.slider(box, "temperature", [0.1, 3, 0.1, 1], show);
    const k = d.slider(box, "top-k", [1, 6, 1, 6], show);
    const p = d.slider(box, "top-p", [0.05, 1, 0.05, 1], show);
    const svg = d.canvas(box, 420, 145, "The distribution of the next token");
    const text = d.says(box);

    function show() {
      fresh(svg);
      const all = d.softmax(logits.slice(0, k.value).map((logit) => logit / temperature.value));
      let before = 0;
      const kept = all.map((probability) => {
        const stays = before < p.value;
        before += probability;
        return stays ? probability : 0;
      });
      const sum = kept.reduce((a, b) => a + b, 0);
      const final = names.map((_, i) => (kept[i] || 0) / sum);
      d.bars(svg, final, names);
      const entropy = final.reduce((a, q) => a - (q ? q * Math.log2(q) : 0), 0);
      text.textContent = `The cat sat on the ... : ${final.filter(Boolean).length} tokens can be ` +
        `drawn, entropy ${entropy.toFixed(2)} bits.`;
    }

    show();
  }

  function beamSearch(box) {
    const tree = { "": { a: 0.5, the: 0.4, one: 0.1 },
      a: { cat: 0.4, dog: 0.35, mat: 0.25 }, the: { cat: 0.9, dog: 0.05, mat: 0.05 },
      one: { cat: 0.5, dog: 0.3, mat: 0.2 } };
    const beams = d.slider(box, "beams", [1, 3, 1, 1], show);
    const svg = d.canvas(box, 460, 215, "Hypotheses of two tokens; the kept ones are strong");
    const text = d.says(box);

    function show() {
      fresh(svg);
      const kept = Object.entries(tree[""]).sort((a, b) => b[1] - a[1]).slice(0, beams.value);
      const ends = [];
      Object.entries(tree[""]).forEach(([first, p], i) => {
        const y = 40 + 70 * i;
        const stays = kept.some(([token]) => token === first);
        d.add(svg, "line", { x1: 50, y1: 110, x2: 140, y2: y, class: stays ? "strong" : "line" });
        d.label(svg, 146, y + 4, `${first} ${p}`);
        if (!stays) return;
        Object.entries(tree[first]).forEach(([second, q], j) => {
          const at = y - 20 + 20 * j;
          ends.push([`${first} ${second}`, p * q, at]);
          d.add(svg, "line", { x1: 200, y1: y, x2: 280, y2: at, class: "line" });
          d.label(svg, 286, at + 4, `${second} ${q}  =  ${(p * q).toFixed(3)}`);
        });
      });
      ends.sort((a, b) => b[1] - a[1]);
      d.add(svg, "circle", { cx: 275, cy: ends[0][2], r: 5, class: "second" });
      text.textContent = `Best: "${ends[0][0]}" with probability ${ends[0][1].toFixed(3)}. ` +
        (beams.value === 1 ? "One beam is greedy search: it misses a likelier text." : "");
    }

    show();
  }

  function encoderDecoder(box) {
    const source = ["cats", "chase", "mice"];
    const target = ["kediler", "fareleri", "kovalar"];
    const found = [[4, 0.5, 1], [0.5, 1, 4], [0.5, 4, 1]];
    const step = d.slider(box, "output token", [1, 3, 1, 1], show);
    const kind = d.choice(box, "decoder", ["attends to all states", "has the last state only"], show);
    const svg = d.canvas(box, 460, 160, "From which source tokens an output token is computed");
    const text = d.says(box);

    function show() {
      fresh(svg);
      const t = step.value - 1;
      const attends = kind.value.startsWith("attends");
      const weights = attends ? d.softmax(found[t]) : [0, 0, 1];
      source.forEach((token, i) => {
        const x = 90 + 140 * i;
        d.label(svg, x, 146, token, { "text-anchor": "middle" });
        d.add(svg, "circle", { cx: x, cy: 120, r: 7, class: "fill" });
        if (i) d.add(svg, "line", { x1: x - 132, y1: 120, x2: x - 8, y2: 120, class: "line" });
        const width = 0.5 + 8 * weights[i];
        const line = { x1: x, y1: 112, x2: 90 + 140 * t, y2: 44, class: "strong" };
        if (weights[i] > 0.01) d.add(svg, "line", { ...line, style: `stroke-width: ${width}` });
      });
      target.forEach((token, i) => {
        d.label(svg, 90 + 140 * i, 24, i <= t ? token : "...", { "text-anchor": "middle" });
        d.add(svg, "circle", { cx: 90 + 140 * i, cy: 38, r: 6, class: i === t ? "second" : "fill" });
      });
      text.textContent = attends
        ? `Weights for "${target[t]}": ${weights.map((w) => w.toFixed(2)).join(", ")} (an example; ` +
          "qkv translate --alignment shows those of a trained model)."
        : "One vector has to hold the whole source: the bottleneck.";
    }

    show();
  }

  function bertMasking(box) {
    let seed = 5;
    const rate = d.slider(box, "chosen, in %", [5, 60, 5, 15], show);
    d.button(box, "draw again", () => {
      seed += 1;
      show();
    });
    const tokens = "the quick brown fox jumps over the lazy dog while nobody looks at it".split(" ");
    const svg = d.canvas(box, 480, 120, "What the model reads, and what it has to predict");
    const text = d.says(box);

    function show() {
      fresh(svg);
      const uniform = d.random(seed * 7919);
      for (let i = 0; i < 5; i += 1) uniform();
      const order = tokens.map((_, i) => [uniform(), i]).sort((a, b) => a[0] - b[0]);
      const count = Math.max(1, Math.round((rate.value / 100) * tokens.length));
      const chosen = new Set(order.slice(0, count).map(([, i]) => i));
      let x = 10;
      let y = 24;
      tokens.forEach((token, i) => {
        const how = chosen.has(i) ? uniform() : 1;
        let shown = token;
        if (chosen.has(i) && how < 0.8) shown = "[mask]";
        else if (chosen.has(i) && how < 0.9) shown = tokens[Math.floor(uniform() * tokens.length)];
        const width = 14 + 7.5 * Math.max(shown.length, token.length);
        if (x + width > 474) [x, y] = [10, y + 50];
        const place = { x, y: y - 15, width: width - 6, height: 21, rx: 3, "fill-opacity": 0.25 };
        if (chosen.has(i)) d.add(svg, "rect", { ...place, class: "fill" });
        d.label(svg, x + 4, y, shown);
        if (chosen.has(i)) d.label(svg, x + 4, y + 18, token, { class: "faint" });
        x += width;
      });
      text.textContent = `${count} of ${tokens.length} tokens are chosen and predicted: 80% shown as ` +
        "[mask], 10% as another token, 10% unchanged. The others count nothing in the loss.";
    }

    show();
  }

  function lora(box) {
    const width = d.slider(box, "width E", [64, 4096, 64, 768], show);
    const rank = d.slider(box, "rank r", [1, 64, 1, 8], show);
    const svg = d.canvas(box, 440, 160, "W and its change B A");
    const text = d.says(box);

    function show() {
      fresh(svg);
      const thin = Math.max(2, (110 * rank.value) / width.value);
      d.add(svg, "rect", { x: 30, y: 30, width: 110, height: 110, class: "frame" });
      d.label(svg, 85, 90, "W, frozen", { "text-anchor": "middle" });
      d.label(svg, 158, 90, "+");
      d.add(svg, "rect", { x: 190, y: 30, width: thin, height: 110, class: "fill" });
      d.label(svg, 190 + thin / 2, 22, "B", { "text-anchor": "middle" });
      d.add(svg, "rect", { x: 230 + thin, y: 30, width: 110, height: thin, class: "second" });
      d.label(svg, 285 + thin, 22, "A", { "text-anchor": "middle" });
      const whole = width.value ** 2;
      const few = 2 * width.value * rank.value;
      text.textContent = `W has ${whole.toLocaleString("en")} numbers, B and A together ` +
        `${few.toLocaleString("en")}: ${((100 * few) / whole).toFixed(2)}% are trained.` +
        (few > whole ? " At this rank nothing is saved." : "");
    }

    show();
  }

  function probe(box) {
    const uniform = d.random(21);
    const points = Array.from({ length: 60 }, (_, i) => {
      const label = i % 2;
      return [d.normal(uniform) + (label ? 1 : -1), d.normal(uniform) + (label ? 0.8 : -0.8), label,
        Number(uniform() < 0.5)];
    });
    const angle = d.slider(box, "direction of the probe", [0, 180, 5, 120], show);
    const kind = d.choice(box, "labels", ["true", "shuffled (control)"], show);
    const svg = d.canvas(box, 440, 220, "Hidden vectors, their labels and a linear probe");
    const text = d.says(box);

    function show() {
      fresh(svg);
      const turn = (angle.value * Math.PI) / 180;
      const [a, b] = [Math.cos(turn), Math.sin(turn)];
      let right = 0;
      for (const [x, y, known, shuffled] of points) {
        const label = kind.value === "true" ? known : shuffled;
        right += Number(a * x + b * y > 0) === label;
        const place = { cx: 220 + 45 * x, cy: 110 - 30 * y, r: 4.5 };
        d.add(svg, "circle", { ...place, class: label ? "fill" : "second" });
      }
      const line = { x1: 220 - 180 * b, y1: 110 - 120 * a, x2: 220 + 180 * b, y2: 110 + 120 * a };
      d.add(svg, "line", { ...line, class: "line" });
      const accuracy = right / points.length;
      text.textContent = `Accuracy ${(100 * accuracy).toFixed(0)}%. A probe says something only if it is ` +
        "better than the same probe on shuffled labels, and on a model with random weights.";
    }

    show();
  }

  return {
    lookup, scores, "self-attention": selfAttention, masks, "multi-head": multiHead, positions, block,
    "byte-pairs": bytePairs, gpt, "training-step": trainingStep, generation,
    "beam-search": beamSearch, "encoder-decoder": encoderDecoder, "bert-masking": bertMasking, lora,
    probe,
  };
})();

for (const box of document.querySelectorAll(".picture")) pictures[box.dataset.picture](box);
