/* What decode_kernels.c compiles for each instruction set. LANES numbers are one vector, VECTORS vectors
   one panel. Up to TILE rows are multiplied together, each weight read once for all of them: by C
   vectors of an int8 or int4 panel, or by four rows of a float32 matrix (two of them for more than
   WIDE_ROWS rows), as many as the registers hold. */

#define VECTORS (PANEL / LANES)
#define UNROLL _Pragma("GCC unroll 8")

/* R rows times a panel of int8. An int32 holds 512 products of a 16-bit and an 8-bit number. */
INLINE TARGET void NAME(tile_int8)(const int R, const int C, const Multiplication *m, int64_t panel,
                                   int64_t first, int64_t start, float *y) {
    const int8_t *weight = (const int8_t *)m->product->weight + panel * m->W * PANEL;
    const int16_t *numbers = m->rows.numbers + first * m->W;
    VF total[TILE][VECTORS];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int c = 0; c < C; c++) total[r][c] = ZERO_FLOAT;

    for (int64_t begin = 0; begin < m->W; begin += 512) {
        VI sum[TILE][VECTORS];
        UNROLL for (int r = 0; r < R; r++)
            UNROLL for (int c = 0; c < C; c++) sum[r][c] = ZERO;

        for (int64_t e = begin; e < MIN(begin + 512, m->W); e += 2) {
            VI w[VECTORS];
            UNROLL for (int c = 0; c < C; c++)
                w[c] = WIDEN_INT8(weight + e * PANEL + 2 * (start + LANES * c));
            UNROLL for (int r = 0; r < R; r++) {
                VI pair = ALL(pair_at(numbers + r * m->W + e));
                UNROLL for (int c = 0; c < C; c++) {
                    sum[r][c] = DOT(sum[r][c], w[c], pair);
                    IN_ORDER(sum[r][c]);
                }
            }
        }

        UNROLL for (int r = 0; r < R; r++)
            UNROLL for (int c = 0; c < C; c++) total[r][c] = ADD(total[r][c], TO_FLOAT(sum[r][c]));
    }

    const float *scale = m->product->scale + panel * PANEL + start;
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int c = 0; c < C; c++)
            STORE(y + r * PANEL + start + c * LANES, total[r][c] * LOAD(scale + c * LANES));
}

/* R rows times a panel of int4: weight = center + step * (number - 8) in groups of 32 columns. */
INLINE TARGET void NAME(tile_int4)(const int R, const int C, const Multiplication *m, int64_t panel,
                                   int64_t first, int64_t start, float *y) {
    const int64_t G = m->W / GROUP;
    const uint8_t *weight = (const uint8_t *)m->product->weight + panel * m->W / 2 * PANEL;
    const uint16_t *groups = m->product->groups + panel * G * 2 * PANEL;
    const int16_t *numbers = m->rows.numbers + first * m->W;
    const float *sums = m->rows.sums + first * G;
    VF total[TILE][VECTORS];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int c = 0; c < C; c++) total[r][c] = ZERO_FLOAT;

    for (int64_t g = 0; g < G; g++) {
        VI sum[TILE][VECTORS];
        UNROLL for (int r = 0; r < R; r++)
            UNROLL for (int c = 0; c < C; c++) sum[r][c] = ZERO;

        UNROLL for (int64_t e = g * GROUP; e < (g + 1) * GROUP; e += 2) {
            VI w[VECTORS];
            UNROLL for (int c = 0; c < C; c++) {
                VI bytes = WIDEN_BYTES(weight + e / 2 * PANEL + start + LANES * c);
                w[c] = NIBBLES(bytes);
            }
            UNROLL for (int r = 0; r < R; r++) {
                VI pair = ALL(pair_at(numbers + r * m->W + e));
                UNROLL for (int c = 0; c < C; c++) {
                    sum[r][c] = DOT(sum[r][c], w[c], pair);
                    IN_ORDER(sum[r][c]);
                }
            }
        }

        UNROLL for (int c = 0; c < C; c++) {
            VF step = WIDEN_BFLOAT(groups + g * 2 * PANEL + start + LANES * c);
            VF center = WIDEN_BFLOAT(groups + (g * 2 + 1) * PANEL + start + LANES * c);
            VF zero = MULTIPLY_ADD(ALL_FLOAT(-8.0f), step, center); /* the weight of number 0 */
            UNROLL for (int r = 0; r < R; r++) {
                total[r][c] = MULTIPLY_ADD(step, TO_FLOAT(sum[r][c]), total[r][c]);
                total[r][c] = MULTIPLY_ADD(zero, ALL_FLOAT(sums[r * G + g]), total[r][c]);
            }
        }
    }

    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int c = 0; c < C; c++) STORE(y + r * PANEL + start + c * LANES, total[r][c]);
}

/* R rows times up to 32 rows of a float32 matrix, I of them together. */
INLINE TARGET void NAME(tile_float)(const int R, const int I, const Multiplication *m, int64_t panel,
                                    int64_t first, float *y) {
    const int64_t E = m->product->E;
    const float *weight = (const float *)m->product->weight + panel * PANEL * E;
    const int64_t rows = MIN(PANEL, m->product->N - panel * PANEL);
    const float *x = (m->product->norm == NO_NORM ? m->x : m->normalised) + first * E;
    for (int64_t n = 0; n < rows; n += I) {
        const float *w[4];
        UNROLL for (int i = 0; i < I; i++) w[i] = weight + MIN(n + i, rows - 1) * E;

        VF sum[TILE][4];
        UNROLL for (int r = 0; r < R; r++)
            UNROLL for (int i = 0; i < I; i++) sum[r][i] = ZERO_FLOAT;

        int64_t e = 0;
        for (; e + LANES <= E; e += LANES) {
            VF part[TILE];
            UNROLL for (int r = 0; r < R; r++) part[r] = LOAD(x + r * E + e);
            UNROLL for (int i = 0; i < I; i++) {
                VF weights = LOAD(w[i] + e);
                UNROLL for (int r = 0; r < R; r++) sum[r][i] = MULTIPLY_ADD(part[r], weights, sum[r][i]);
            }
        }

        UNROLL for (int r = 0; r < R; r++)
            UNROLL for (int i = 0; i < I; i++) {
                float total = SUM(sum[r][i]);
                for (int64_t rest = e; rest < E; rest++) total += x[r * E + rest] * w[i][rest];
                if (n + i < rows) y[r * PANEL + n + i] = total;
            }
    }
}

INLINE TARGET void NAME(tile)(const Multiplication *m, int64_t panel, int64_t first, int R, float *y) {
#define WITH(rows, vectors) \
    case rows: \
        if (m->product->format == FLOAT32) { \
            NAME(tile_float)(rows, rows <= WIDE_ROWS ? 4 : 2, m, panel, first, y); \
            break; \
        } \
        for (int64_t start = 0; start < PANEL; start += vectors * LANES) { \
            if (m->product->format == INT8) NAME(tile_int8)(rows, vectors, m, panel, first, start, y); \
            else NAME(tile_int4)(rows, vectors, m, panel, first, start, y); \
        } \
        break;
    switch (R) {
        WITH(1, VECTORS)
        WITH(2, VECTORS)
        WITH(3, 2)
        WITH(4, 2)
        WITH(5, 2)
#if TILE > 5
        WITH(6, 2)
#endif
    }
#undef WITH
}

/* y times the row's unit, bias, activation and residual. */
INLINE TARGET void NAME(finish)(const Multiplication *m, int64_t panel, int64_t row, float *y,
                                float *gated) {
    const Product *p = m->product;
    const int64_t outputs = p->activation == SWIGLU ? p->N / 2 : p->N;
    const int64_t n = panel * PANEL;
    const int64_t count = MIN(PANEL, outputs - n);
    const float unit = p->format == FLOAT32 ? 1 : m->rows.units[row];
    float *output = m->output + row * outputs + n;
    float result[PANEL];

#define EACH _Pragma("omp simd") for (int i = 0; i < PANEL; i++)
    EACH y[i] *= unit;
    if (p->bias)
        for (int64_t i = 0; i < count; i++) y[i] += p->bias[n + i];

    if (p->activation == SWIGLU) {
        EACH gated[i] *= unit;
        if (p->bias)
            for (int64_t i = 0; i < count; i++) gated[i] += p->bias[outputs + n + i];
        EACH result[i] = activated(y[i], SILU) * gated[i];
    } else if (p->activation == GELU_TANH) {
        EACH result[i] = activated(y[i], GELU_TANH);
    } else if (p->activation == SILU) {
        EACH result[i] = activated(y[i], SILU);
    } else {
        for (int i = 0; i < PANEL; i++) result[i] = activated(y[i], p->activation);
    }
#undef EACH

    if (m->residual)
        for (int64_t i = 0; i < count; i++) output[i] = result[i] + m->residual[row * outputs + n + i];
    else
        memcpy(output, result, count * sizeof(float));
}

static TARGET void NAME(panels)(const Task *task, int64_t begin, int64_t end) {
    const Multiplication *m = task->data;
    const Product *p = m->product;
    float y[TILE * PANEL] = {0}, gated[TILE * PANEL] = {0};
    for (int64_t panel = begin; panel < end; panel++)
        for (int64_t first = 0; first < m->M; first += TILE) {
            int R = (int)MIN(TILE, m->M - first);
            NAME(tile)(m, panel, first, R, y);
            if (p->activation == SWIGLU) NAME(tile)(m, panel + p->N / 2 / PANEL, first, R, gated);
            for (int r = 0; r < R; r++)
                NAME(finish)(m, panel, first + r, y + r * PANEL, gated + r * PANEL);
        }
}

/* The norm of a row. */
INLINE TARGET void NAME(normalise)(const Product *p, const float *x, float *y) {
    float mean = 0, square = 0;
    if (p->norm == LAYER_NORM) {
        _Pragma("omp simd reduction(+ : mean)") for (int64_t e = 0; e < p->E; e++) mean += x[e];
        mean /= (float)p->E;
    }
    _Pragma("omp simd reduction(+ : square)") for (int64_t e = 0; e < p->E; e++)
        square += (x[e] - mean) * (x[e] - mean);

    const float factor = 1 / sqrtf(square / (float)p->E + p->epsilon);
    if (p->norm == LAYER_NORM)
        for (int64_t e = 0; e < p->E; e++) y[e] = (x[e] - mean) * factor * p->gain[e] + p->shift[e];
    else
        for (int64_t e = 0; e < p->E; e++) y[e] = x[e] * factor * p->gain[e];
}

/* A row as whole numbers from -32767 to 32767. The unit of a row that is not finite is NaN. */
INLINE TARGET void NAME(round_row)(const Multiplication *m, int64_t row, const float *x) {
    const int64_t E = m->product->E;
    int16_t *numbers = m->rows.numbers + row * m->W;
    int32_t largest = 0; /* the bits of |x| are in the order of their values, NaN above infinity */
    _Pragma("omp simd reduction(max : largest)") for (int64_t e = 0; e < E; e++) {
        int32_t bits;
        memcpy(&bits, x + e, sizeof bits);
        bits &= 0x7fffffff;
        largest = bits > largest ? bits : largest;
    }

    float most;
    memcpy(&most, &largest, sizeof most);
    const int finite = largest < 0x7f800000;
    most = finite && most > 1e-30f ? most : 1e-30f;
    const float factor = finite ? LARGEST / most : 0;
    m->rows.units[row] = finite ? most / LARGEST : NAN;

    for (int64_t e = 0; e < E; e++) {
        float scaled = finite ? x[e] * factor : 0;
        numbers[e] = (int16_t)(int32_t)(scaled + 12582912.0f - 12582912.0f);
    }
    for (int64_t e = E; e < m->W; e++) numbers[e] = 0;

    if (m->product->format != INT4) return;
    for (int64_t g = 0; g < m->W / GROUP; g++) {
        int32_t sum = 0;
        _Pragma("omp simd reduction(+ : sum)") for (int e = 0; e < GROUP; e++)
            sum += numbers[g * GROUP + e];
        m->rows.sums[row * (m->W / GROUP) + g] = (float)sum;
    }
}

static TARGET void NAME(prepare_rows)(const Task *task, int64_t begin, int64_t end) {
    const Multiplication *m = task->data;
    const Product *p = m->product;
    for (int64_t row = begin; row < end; row++) {
        const float *x = m->x + row * p->E;
        if (p->norm != NO_NORM) {
            NAME(normalise)(p, x, m->normalised + row * p->E);
            x = m->normalised + row * p->E;
        }
        if (p->format != FLOAT32) NAME(round_row)(m, row, x);
    }
}

static TARGET void NAME(multiply)(const Processor *processor, Multiplication *m) {
    const Product *p = m->product;
    for_each(processor, m->M, m->M < 8 ? 8 : 4, m, NAME(prepare_rows));

    const int64_t outputs = p->activation == SWIGLU ? p->N / 2 : p->N;
    const int64_t count = round_up(outputs, PANEL) / PANEL;
    const int64_t chunk = count / (8 * processor->threads);
    for_each(processor, count, chunk > 0 ? chunk : 1, m, NAME(panels));
}

/* Rotary positions: rotate a head by its angles. */
INLINE TARGET void NAME(rotate)(const Layer *l, int64_t b, int64_t D, const float *x, float *y) {
    if (!l->cos) {
        memcpy(y, x, D * sizeof(float));
        return;
    }

    const float *cos = l->cos + b * l->angle_stride, *sin = l->sin + b * l->angle_stride;
    for (int64_t d = 0; d < D / 2; d++) y[d] = x[d] * cos[d] - x[d + D / 2] * sin[d];
    for (int64_t d = D / 2; d < D; d++) y[d] = x[d] * cos[d] + x[d - D / 2] * sin[d];
}

/* The heads of one row that share a key-value head: write the new key and value, then attend. */
static TARGET void NAME(attend)(const Task *task, int64_t begin, int64_t end) {
    const Attention *a = task->data;
    const Block *block = a->block;
    const Layer *l = a->layer;
    const int64_t H = block->H, K = block->K, D = block->D;
    const int64_t shared = H / K, whole = D / LANES * LANES;
    const float scale = 1 / sqrtf((float)D);
    for (int64_t number = begin; number < end; number++) {
        const int64_t b = number / K, k = number % K;
        const int64_t S = l->lengths ? l->lengths[b] : l->longest;
        float *weights = a->scratch + number * (l->longest + D), *query = weights + l->longest;
        const float *row = a->qkv + b * (H + 2 * K) * D;
        const int64_t new_slot = slot_of(l, block, b, k, S - 1);
        NAME(rotate)(l, b, D, row + (H + k) * D, l->keys + new_slot);
        memcpy(l->values + new_slot, row + (H + K + k) * D, D * sizeof(float));

        for (int64_t h = k * shared; h < (k + 1) * shared; h++) {
            NAME(rotate)(l, b, D, row + h * D, query);
            float most = -INFINITY;
            for (int64_t s = 0; s < S; s++) {
                const float *key = l->keys + slot_of(l, block, b, k, s);
                VF parts = ZERO_FLOAT;
                for (int64_t d = 0; d < whole; d += LANES)
                    parts = MULTIPLY_ADD(LOAD(query + d), LOAD(key + d), parts);
                float score = SUM(parts);
                for (int64_t d = whole; d < D; d++) score += query[d] * key[d];
                if (l->allowed && !l->allowed[b * S + s]) score = -INFINITY;
                weights[s] = score * scale;
                most = weights[s] > most ? weights[s] : most;
            }

            float sum = 0;
            _Pragma("omp simd reduction(+ : sum)") for (int64_t s = 0; s < S; s++) {
                weights[s] = weights[s] == -INFINITY ? 0 : exponential(weights[s] - most);
                sum += weights[s];
            }

            float *output = a->heads + (b * H + h) * D;
            const float factor = sum > 0 ? 1 / sum : 0; /* a query without keys attends to nothing */
            int64_t d = 0;
            for (; d + 4 * LANES <= D; d += 4 * LANES) {
                VF total[4] = {ZERO_FLOAT, ZERO_FLOAT, ZERO_FLOAT, ZERO_FLOAT};
                for (int64_t s = 0; s < S; s++) {
                    const float *value = l->values + slot_of(l, block, b, k, s) + d;
                    VF weight = ALL_FLOAT(weights[s] * factor);
                    UNROLL for (int i = 0; i < 4; i++)
                        total[i] = MULTIPLY_ADD(weight, LOAD(value + i * LANES), total[i]);
                }
                UNROLL for (int i = 0; i < 4; i++) STORE(output + d + i * LANES, total[i]);
            }
            for (; d < D; d++) {
                output[d] = 0;
                for (int64_t s = 0; s < S; s++)
                    output[d] += weights[s] * factor * l->values[slot_of(l, block, b, k, s) + d];
            }
        }
    }
}

#undef VECTORS
#undef UNROLL
#undef TARGET
#undef NAME
#undef LANES
#undef TILE
#undef WIDE_ROWS
#undef IN_ORDER
#undef SUM
#undef VI
#undef VF
#undef WIDEN_INT8
#undef WIDEN_BYTES
#undef WIDEN_BFLOAT
#undef NIBBLES
#undef DOT
#undef ALL
#undef ALL_FLOAT
#undef ZERO
#undef ZERO_FLOAT
#undef TO_FLOAT
#undef MULTIPLY_ADD
#undef ADD
#undef LOAD
#undef STORE
