/* What decode_kernels.c compiles for each instruction set. LANES numbers are one vector, VECTORS vectors
   one panel. Up to TILE rows are multiplied together, each weight read once for all of them: by C
   vectors of an int8 or int4 panel, or by four rows of a float32 matrix (two of them for more than
   WIDE_ROWS rows), as many as the registers hold. */

#define VECTORS (PANEL / LANES)
#define TOGETHER (8 / VECTORS) /* int8 panels that one row reads side by side: 2 or 4 */
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* A panel of int8 or int4 in memory. */
INLINE const void *NAME(panel_of)(const Multiplication *m, int64_t panel) {
    const int64_t numbers = panel * m->W * PANEL;
    return (const int8_t *)m->product->weight + (m->product->format == INT8 ? numbers : numbers / 2);
}

/* The steps of a group of columns, and the weights of number 0: center - 8 * step. */
INLINE TARGET void NAME(group_at)(const Multiplication *m, int64_t panel, int64_t e, int64_t start,
                                  VF *step, VF *zero) {
    const uint16_t *group = m->product->groups + (panel * m->W + e) / GROUP * 2 * PANEL + start;
    *step = WIDEN_BFLOAT(group);
    *zero = MULTIPLY_ADD(ALL_FLOAT(-8.0f), *step, WIDEN_BFLOAT(group + PANEL));
}

/* Columns e and e + 1 of an int8 panel, of a vector of rows from `start` on, in 16 bits. */
INLINE TARGET VI NAME(int8_pair_at)(const void *panel, int64_t e, int64_t start) {
    return WIDEN_INT8((const int8_t *)panel + e * PANEL + 2 * start);
}

/* A vector of words of an int4 group, from row `start` of the panel on: word i of a row has pairs i,
   i + 4, i + 8 and i + 12 of the group's 16 pairs of columns, each number in four bits of its half. */
INLINE TARGET VI NAME(words_at)(const void *panel, int64_t e, int i, int64_t start) {
    return LOAD_WHOLE((const uint32_t *)panel + (e / GROUP * WORDS + i) * PANEL + start);
}

/* Prefetching for one row, which uses weights faster than a processor alone fetches them. Intel's are
   fastest when the caches get them, AMD's when int4 bypasses the caches and the rest is left to the
   processor. */
INLINE TARGET void NAME(prefetch)(const int format, const int intel, const void *weights) {
    /* An integer: the address may be behind the end of the matrix, where a pointer must not be. */
    const uintptr_t address = (uintptr_t)weights;
    if (intel)
        _mm_prefetch((const char *)(address + AHEAD_INTEL), _MM_HINT_T0);
    else if (format == INT4)
        _mm_prefetch((const char *)(address + AHEAD), _MM_HINT_NTA);
}

/* Pair i + WORDS * k of such words, in 16 bits. */
INLINE TARGET VI NAME(pair_of)(VI words, const int k) {
    if (k == PAIRS - 1) return SHIFT_RIGHT(words, 4 * k);
    return AND(SHIFT_RIGHT(words, 4 * k), ALL(0x000f000f));
}

/* Some columns of a panel in the order in which many rows read them. */
INLINE TARGET void NAME(unpack)(const int format, const Multiplication *m, int64_t panel, int64_t begin,
                                int64_t end, Section *section) {
    const void *weight = NAME(panel_of)(m, panel);
    int16_t *numbers = section->numbers;
    const int64_t size = format == INT4 ? GROUP : 2;
    for (int64_t start = 0; start < PANEL; start += 2 * LANES)
        for (int64_t e = begin; e < end; e += size, numbers += size * 2 * LANES)
            UNROLL for (int c = 0; c < 2; c++) {
                const int64_t row = start + c * LANES;
                int16_t *target = numbers + 2 * c * LANES;
                if (format == INT8) STORE_WHOLE(target, NAME(int8_pair_at)(weight, e, row));
                UNROLL for (int i = 0; format == INT4 && i < WORDS; i++) {
                    const VI words = NAME(words_at)(weight, e, i, row);
                    UNROLL for (int k = 0; k < PAIRS; k++)
                        STORE_WHOLE(target + (i + WORDS * k) * 4 * LANES, NAME(pair_of)(words, k));
                }
            }

    if (format != INT4) return;
    for (int64_t e = begin; e < end; e += GROUP)
        for (int64_t start = 0; start < PANEL; start += LANES) {
            VF step, zero;
            NAME(group_at)(m, panel, e, start, &step, &zero);
            float *target = section->groups + (e - begin) / GROUP * PANEL + start;
            STORE(target, step);
            STORE(target + ZEROS, zero);
        }
}

/* Add to the sums a pair of columns of C vectors, times the same columns of R rows. */
INLINE TARGET void NAME(add_pair)(const int R, const int C, VI sum[TILE][VECTORS], const VI w[VECTORS],
                                  const int16_t *numbers, int64_t W) {
    UNROLL for (int r = 0; r < R; r++) {
        VI pair = ALL(pair_at(numbers + r * W));
        UNROLL for (int c = 0; c < C; c++) ADD_DOT(sum[r][c], w[c], pair);
    }
}

/* The same for all columns of the int4 group that begins at column e, unpacked on the way; the chains
   take turns. */
INLINE TARGET void NAME(add_group)(const int R, const int C, VI sum[][TILE][VECTORS],
                                   const void *panel, int64_t e, int64_t start,
                                   const int16_t *numbers, int64_t W, const int intel) {
    UNROLL for (int i = 0; i < WORDS; i++) {
        VI words[VECTORS], w[VECTORS];
        UNROLL for (int c = 0; c < C; c++) words[c] = NAME(words_at)(panel, e, i, start + LANES * c);
        if (R == 1) {
            const char *row = (const char *)panel + (e / GROUP * WORDS + i) * PANEL * 4;
            NAME(prefetch)(INT4, intel, row);
            NAME(prefetch)(INT4, intel, row + 64);
        }
        UNROLL for (int k = 0; k < PAIRS; k++) {
            UNROLL for (int c = 0; c < C; c++) w[c] = NAME(pair_of)(words[c], k);
            NAME(add_pair)(R, C, sum[k % CHAINS(R)], w, numbers + e + 2 * (i + WORDS * k), W);
        }
    }
}

/* Add the sums to the totals of R rows, in int4 with the step and the zero of their group;
   numbers_sums + r * G is the sum of row r's activations in the group. */
INLINE TARGET void NAME(add_sums)(const int R, const int C, const int format, VI sum[TILE][VECTORS],
                                  const VF step[VECTORS], const VF zero[VECTORS],
                                  const float *numbers_sums, int64_t G, float *totals) {
    UNROLL for (int r = 0; r < R; r++) {
        const VF numbers_sum = format == INT4 ? ALL_FLOAT(numbers_sums[r * G]) : ZERO_FLOAT;
        UNROLL for (int c = 0; c < C; c++) {
            float *target = totals + r * PANEL + c * LANES;
            VF total = LOAD(target), product = TO_FLOAT(sum[r][c]);
            if (format == INT4) {
                total = MULTIPLY_ADD(step[c], product, total);
                total = MULTIPLY_ADD(zero[c], numbers_sum, total);
            } else
                total = ADD(total, product);
            STORE(target, total);
        }
    }
}

/* Add to y what R rows of x times C vectors of a panel give in the columns from `begin` to `end`, at
   most SECTION: an int32 holds 512 products of a 16-bit and an 8-bit number. In int4 the weight is
   center + step * (number - 8) in groups of 32 columns. Without `section` the panel is unpacked on
   the way, and sums are whole numbers, so that their order does not matter: few rows have several
   chains of additions, since each addition waits for the one before it in its chain. */
INLINE TARGET void NAME(tile_whole)(const int R, const int C, const int format, const Section *section,
                                    const Multiplication *m, int64_t panel, int64_t first,
                                    int64_t start, int64_t begin, int64_t end, float *y) {
    const void *weight = NAME(panel_of)(m, panel);
    const int intel = m->intel;
    const int16_t *numbers = m->rows.numbers + first * m->W;
    const int64_t G = m->W / GROUP;
    const float *sums = m->rows.sums + first * G + begin / GROUP;
    const float *steps = section ? section->groups + start : NULL;
    const int64_t size = format == INT4 ? GROUP : end - begin;
    const int16_t *unpacked = section ? section->numbers + start * (end - begin) : NULL;
    for (int64_t part = begin; part < end; part += size) {
        VI chains[CHAINS(1)][TILE][VECTORS];
        for (int k = 0; k < CHAINS(R); k++)
            UNROLL for (int r = 0; r < R; r++)
                UNROLL for (int c = 0; c < C; c++) chains[k][r][c] = ZERO;

        if (format == INT4 && !section)
            NAME(add_group)(R, C, chains, weight, part, start, numbers, m->W, intel);
        else
            for (int64_t e = part; e < part + size;)
                UNROLL for (int k = 0; k < CHAINS(R); k++, e += 2) {
                    VI w[VECTORS];
                    UNROLL for (int c = 0; c < C; c++)
                        w[c] = section ? LOAD_WHOLE(unpacked + 2 * LANES * c)
                                       : NAME(int8_pair_at)(weight, e, start + LANES * c);
                    unpacked += section ? 2 * LANES * C : 0;
                    if (R == 1 && !section)
                        NAME(prefetch)(format, intel, (const int8_t *)weight + e * PANEL);
                    NAME(add_pair)(R, C, chains[k], w, numbers + e, m->W);
                }

        VI(*sum)[VECTORS] = chains[0];
        for (int k = 1; k < CHAINS(R); k++)
            UNROLL for (int r = 0; r < R; r++)
                UNROLL for (int c = 0; c < C; c++) sum[r][c] = ADD_WHOLE(sum[r][c], chains[k][r][c]);

        VF step[VECTORS], zero[VECTORS];
        UNROLL for (int c = 0; format == INT4 && c < C; c++) {
            if (section) {
                step[c] = LOAD(steps + LANES * c);
                zero[c] = LOAD(steps + ZEROS + LANES * c);
            } else
                NAME(group_at)(m, panel, part, start + LANES * c, &step[c], &zero[c]);
        }
        float *totals = y + start;
        if (section || format == INT8)
            __asm__("" : "+r"(totals)); /* gcc would keep the address of each in memory */
        NAME(add_sums)(R, C, format, sum, step, zero, sums, G, totals);
        steps += section ? PANEL : 0;
        sums++;
        IN_MEMORY(R * C); /* not y in registers that the sums need */
    }
}

/* The first row times P int8 panels side by side: Intel's processors read memory fastest in several
   pages at once. */
INLINE TARGET void NAME(row_int8)(const int P, const Multiplication *m, int64_t panel, float *y) {
    const int8_t *weight = NAME(panel_of)(m, panel);
    const int64_t size = m->W * PANEL; /* of a panel */
    for (int64_t begin = 0; begin < m->W; begin += SECTION) {
        VI sum[TOGETHER][VECTORS];
        UNROLL for (int p = 0; p < P; p++)
            UNROLL for (int c = 0; c < VECTORS; c++) sum[p][c] = ZERO;

        for (int64_t e = begin; e < MIN(begin + SECTION, m->W); e += 2) {
            const VI pair = ALL(pair_at(m->rows.numbers + e));
            UNROLL for (int p = 0; p < P; p++) {
                const int8_t *columns = weight + p * size;
                NAME(prefetch)(INT8, 1, columns + e * PANEL);
                UNROLL for (int c = 0; c < VECTORS; c++)
                    ADD_DOT(sum[p][c], NAME(int8_pair_at)(columns, e, c * LANES), pair);
            }
        }

        UNROLL for (int p = 0; p < P; p++)
            UNROLL for (int c = 0; c < VECTORS; c++) {
                float *target = y + p * PANEL + c * LANES;
                STORE(target, ADD(LOAD(target), TO_FLOAT(sum[p][c])));
            }
    }
}

/* Many rows times a panel: a section is unpacked once, and stays in the cache for all of them. */
INLINE TARGET void NAME(many_rows)(const int format, const Multiplication *m, int64_t panel,
                                   int64_t first, int64_t count, float *y) {
    Section section;
    for (int64_t begin = 0; begin < m->W; begin += SECTION) {
        const int64_t end = MIN(begin + SECTION, m->W);
        NAME(unpack)(format, m, panel, begin, end, &section);
        for (int64_t start = 0; start < PANEL; start += 2 * LANES)
            for (int64_t row = 0, R; row < count; row += R) {
                R = even_part(count - row, TILE);
#define WITH(rows) \
    case rows: \
        NAME(tile_whole)(rows, 2, format, &section, m, panel, first + row, start, begin, end, \
                         y + row * PANEL); \
        break;
                switch (R) { WITH(1) WITH(2) WITH(3) WITH(4) WITH(5) WITH(6) }
#undef WITH
            }
    }
}

/* Up to TILE rows times a panel. */
INLINE TARGET void NAME(few_rows)(const int format, const Multiplication *m, int64_t panel,
                                  int64_t first, int64_t count, float *y) {
#define WITH(rows, vectors) \
    case rows: \
        for (int64_t start = 0; start < PANEL; start += vectors * LANES) \
            for (int64_t begin = 0; begin < m->W; begin += SECTION) \
                NAME(tile_whole)(rows, vectors, format, NULL, m, panel, first, start, begin, \
                                 MIN(begin + SECTION, m->W), y); \
        break;
    switch (count) {
        WITH(1, VECTORS) WITH(2, VECTORS) WITH(3, 2) WITH(4, 2) WITH(5, 2) WITH(6, 2)
    }
#undef WITH
}

/* One row times up to 32 rows of a float32 matrix, one after the other: AMD's processors read memory
   fastest in one stream. */
INLINE TARGET void NAME(row_float)(const Multiplication *m, int64_t panel, int64_t first, float *y) {
    const int64_t E = m->product->E;
    const float *w = (const float *)m->product->weight + panel * PANEL * E;
    const int64_t rows = MIN(PANEL, m->product->N - panel * PANEL);
    const float *x = (m->product->norm == NO_NORM ? m->x : m->normalised) + first * E;
    for (int64_t n = 0; n < rows; n++, w += E) {
        VF sum[8];
        UNROLL for (int i = 0; i < 8; i++) sum[i] = ZERO_FLOAT;

        int64_t e = 0;
        for (; e + 8 * LANES <= E; e += 8 * LANES)
            UNROLL for (int i = 0; i < 8; i++)
                sum[i] = MULTIPLY_ADD(LOAD(x + e + i * LANES), LOAD(w + e + i * LANES), sum[i]);
        for (; e + LANES <= E; e += LANES) sum[0] = MULTIPLY_ADD(LOAD(x + e), LOAD(w + e), sum[0]);

        UNROLL for (int i = 0; i < 4; i++) sum[i] = ADD(sum[i], sum[i + 4]);
        float total = SUM(ADD(ADD(sum[0], sum[1]), ADD(sum[2], sum[3])));
        for (; e < E; e++) total += x[e] * w[e];
        y[n] = total;
    }
}

/* R rows times up to 32 rows of a float32 matrix, I of them together. Intel's processors read memory
   fastest in several pages at once, so these lie far from each other. */
INLINE TARGET void NAME(tile_float)(const int R, const int I, const Multiplication *m, int64_t panel,
                                    int64_t first, float *y) {
    const int64_t E = m->product->E;
    const float *weight = (const float *)m->product->weight + panel * PANEL * E;
    const int64_t rows = MIN(PANEL, m->product->N - panel * PANEL);
    const float *x = (m->product->norm == NO_NORM ? m->x : m->normalised) + first * E;
    const int64_t apart = m->intel ? PANEL / I : 1;
    for (int64_t tile = 0; tile < PANEL / I; tile++) {
        const int64_t n = m->intel ? tile : tile * I;
        if (n >= rows) break;

        const float *w[4];
        UNROLL for (int i = 0; i < I; i++) w[i] = weight + MIN(n + i * apart, rows - 1) * E;

        VF sum[TILE][4];
        UNROLL for (int r = 0; r < R; r++)
            UNROLL for (int i = 0; i < I; i++) sum[r][i] = ZERO_FLOAT;

        int64_t e = 0;
        for (; e + LANES <= E; e += LANES) {
            VF part[TILE];
            UNROLL for (int r = 0; r < R; r++) part[r] = LOAD(x + r * E + e);
            UNROLL for (int i = 0; i < I; i++) {
                VF weights = LOAD(w[i] + e);
                if (R == 1 && e % 16 == 0) NAME(prefetch)(FLOAT32, m->intel, w[i] + e);
                UNROLL for (int r = 0; r < R; r++) sum[r][i] = MULTIPLY_ADD(part[r], weights, sum[r][i]);
            }
        }

        UNROLL for (int r = 0; r < R; r++)
            UNROLL for (int i = 0; i < I; i++) {
                float total = SUM(sum[r][i]);
                for (int64_t rest = e; rest < E; rest++) total += x[r * E + rest] * w[i][rest];
                if (n + i * apart < rows) y[r * PANEL + n + i * apart] = total;
            }
    }
}

/* Rows of x times P panels, before unit, bias and activation. Several panels are int8, for one row. */
INLINE TARGET void NAME(panels_product)(const Multiplication *m, int64_t panel, int64_t P, int64_t first,
                                        int64_t count, float *y) {
    memset(y, 0, count * P * PANEL * sizeof(float));
    const int format = m->product->format;
    if (P == TOGETHER)
        NAME(row_int8)(TOGETHER, m, panel, y);
    else if (P == 2)
        NAME(row_int8)(2, m, panel, y);
    else if (m->M >= UNPACK_FROM && format == INT8)
        NAME(many_rows)(INT8, m, panel, first, count, y);
    else if (m->M >= UNPACK_FROM && format == INT4)
        NAME(many_rows)(INT4, m, panel, first, count, y);
    else if (format == INT8)
        NAME(few_rows)(INT8, m, panel, first, count, y);
    else if (format == INT4)
        NAME(few_rows)(INT4, m, panel, first, count, y);
    else if (count == 1 && !m->intel)
        NAME(row_float)(m, panel, first, y);
    else {
#define WITH(rows) \
    case rows: NAME(tile_float)(rows, rows <= WIDE_ROWS ? 4 : 2, m, panel, first, y); break;
        switch (count) { WITH(1) WITH(2) WITH(3) WITH(4) WITH(5) WITH(6) }
#undef WITH
    }

    if (format != INT8) return;
    const float *scale = m->product->scale + panel * PANEL;
    for (int64_t row = 0; row < count; row++)
        for (int64_t i = 0; i < P * PANEL; i++) y[row * P * PANEL + i] *= scale[i];
}

/* e^x as `exponential` computes it, of a vector. */
INLINE TARGET VF NAME(exponentials)(VF x) {
    x = LARGER(ALL_FLOAT(-87.3f), SMALLER(ALL_FLOAT(88.0f), x));
    const VF shifted = MULTIPLY_ADD(x, ALL_FLOAT(1.44269504f), ALL_FLOAT(12582912.0f));
    const VF n = shifted - ALL_FLOAT(12582912.0f);
    VF r = MULTIPLY_ADD(n, ALL_FLOAT(-0.693359375f), x);
    r = MULTIPLY_ADD(n, ALL_FLOAT(2.12194440e-4f), r);
    VF p = MULTIPLY_ADD(r, ALL_FLOAT(0.00138888889f), ALL_FLOAT(0.00833333333f));
    p = MULTIPLY_ADD(r, p, ALL_FLOAT(0.0416666667f));
    p = MULTIPLY_ADD(r, p, ALL_FLOAT(0.166666667f));
    p = MULTIPLY_ADD(r, p, ALL_FLOAT(0.5f));
    p = MULTIPLY_ADD(r, p, ALL_FLOAT(1.0f));
    p = MULTIPLY_ADD(r, p, ALL_FLOAT(1.0f));
    return TIMES_POWER(p, shifted) + (x - x); /* NaN stays NaN */
}

INLINE TARGET VF NAME(activated)(VF x, const int kind) {
    if (kind == RELU) return LARGER(ZERO_FLOAT, x); /* NaN stays NaN */
    if (kind == RELU2) return LARGER(ZERO_FLOAT, x) * LARGER(ZERO_FLOAT, x);

    VF argument = x; /* SiLU: x / (1 + e^-x) */
    if (kind == GELU_TANH) { /* x (1 + tanh u) / 2 = x / (1 + e^-2u) */
        VF cubic = MULTIPLY_ADD(x * x, ALL_FLOAT(0.0713548163f), ALL_FLOAT(1.5957691216f));
        argument = x * cubic;
    }
    return x / (ALL_FLOAT(1.0f) + NAME(exponentials)(ZERO_FLOAT - argument));
}

/* activation(x) of as many numbers; y may be x. */
INLINE TARGET void NAME(activate_all)(int kind, int64_t count, const float *x, float *y) {
    if (kind == GELU) {
        for (int64_t i = 0; i < count; i++) y[i] = 0.5f * x[i] * (1 + erff(x[i] * 0.70710678f));
        return;
    }

    for (int64_t i = 0; i < count; i += LANES) {
        float part[LANES] = {0};
        const int64_t size = MIN(LANES, count - i);
        if (size < LANES) memcpy(part, x + i, size * sizeof(float));
        VF v = LOAD(size < LANES ? part : x + i);
        switch (kind) {
        case RELU: v = NAME(activated)(v, RELU); break;
        case RELU2: v = NAME(activated)(v, RELU2); break;
        case GELU_TANH: v = NAME(activated)(v, GELU_TANH); break;
        case SILU: v = NAME(activated)(v, SILU); break;
        }
        STORE(size < LANES ? part : y + i, v);
        if (size < LANES) memcpy(y + i, part, size * sizeof(float));
    }
}

static TARGET void NAME(activate)(const Task *task, int64_t begin, int64_t end) {
    const Activation *a = task->data;
    const int64_t first = begin * ACTIVATED, last = MIN(end * ACTIVATED, a->count);
    NAME(activate_all)(a->kind, last - first, a->x + first, a->y + first);
}

/* y times the row's unit, bias, activation and residual. */
INLINE TARGET void NAME(finish)(const Multiplication *m, int64_t panel, int64_t row, float *y,
                                float *gated) {
    const Product *p = m->product;
    const int64_t outputs = p->activation == SWIGLU ? p->N / 2 : p->N;
    const int64_t n = panel * PANEL;
    const int64_t count = MIN(PANEL, outputs - n);
    const float unit = p->format == FLOAT32 ? 1 : m->rows.units[row];
    const float power = p->format == FLOAT32 ? 1 : m->rows.powers[row];
    float *output = m->output + row * outputs + n;

#define EACH _Pragma("omp simd") for (int i = 0; i < PANEL; i++)
    EACH y[i] = y[i] * unit * power;
    if (p->bias)
        for (int64_t i = 0; i < count; i++) y[i] += p->bias[n + i];

    if (p->activation == SWIGLU) {
        EACH gated[i] = gated[i] * unit * power;
        if (p->bias)
            for (int64_t i = 0; i < count; i++) gated[i] += p->bias[outputs + n + i];
        NAME(activate_all)(SILU, PANEL, y, y);
        EACH y[i] *= gated[i];
    } else if (p->activation != NONE)
        NAME(activate_all)(p->activation, PANEL, y, y);
#undef EACH

    if (m->residual)
        for (int64_t i = 0; i < count; i++) output[i] = y[i] + m->residual[row * outputs + n + i];
    else
        memcpy(output, y, count * sizeof(float));
}

static TARGET void NAME(panels)(const Task *task, int64_t begin, int64_t end) {
    const Multiplication *m = task->data;
    const Product *p = m->product;
    const int64_t block = p->format != FLOAT32 && m->M >= UNPACK_FROM ? MANY_ROWS : TILE;
    const int64_t together = p->format == INT8 && m->M == 1 && m->intel ? TOGETHER : 1;
    float y[MANY_ROWS * PANEL], gated[MANY_ROWS * PANEL];
    for (int64_t panel = begin, P; panel < end; panel += P) {
        for (P = together; P > end - panel;) P /= 2;
        for (int64_t first = 0, R; first < m->M; first += R) {
            R = even_part(m->M - first, block);
            NAME(panels_product)(m, panel, P, first, R, y);
            if (p->activation == SWIGLU)
                NAME(panels_product)(m, panel + p->N / 2 / PANEL, P, first, R, gated);
            for (int64_t i = 0; i < R * P; i++)
                NAME(finish)(m, panel + i % P, first + i / P, y + i * PANEL, gated + i * PANEL);
        }
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
    const int tiny = most < 1e-30f; /* the factor might overflow, and the unit be subnormal */
    const float enlarge = tiny ? 0x1p96f : 1;
    most = finite && most > 0 ? most * enlarge : 1;
    const float factor = finite ? LARGEST / most : 0;
    m->rows.units[row] = finite ? most / LARGEST : NAN;
    m->rows.powers[row] = tiny ? 0x1p-96f : 1;

    for (int64_t e = 0; e < E; e++) {
        float scaled = finite ? x[e] * enlarge * factor : 0;
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
    if (p->norm != NO_NORM || p->format != FLOAT32)
        for_each(processor, m->M, m->M < 8 ? 8 : 4, 8 * m->M * p->E, m, NAME(prepare_rows));

    const int64_t outputs = p->activation == SWIGLU ? p->N / 2 : p->N;
    const int64_t count = round_up(outputs, PANEL) / PANEL;
    for_each(processor, count, panels_at_once(processor, p, count), m->M * p->N * p->E, m,
             NAME(panels));
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

#include "softmax_loss.h"

#undef VECTORS
#undef TOGETHER
#undef UNROLL
#undef TARGET
#undef NAME
#undef LANES
#undef TILE
#undef CHAINS
#undef WIDE_ROWS
#undef UNPACK_FROM
#undef IN_MEMORY
#undef LOAD_WHOLE
#undef STORE_WHOLE
#undef SUM
#undef VI
#undef VF
#undef WIDEN_INT8
#undef WIDEN_BFLOAT
#undef AND
#undef ADD_WHOLE
#undef SHIFT_RIGHT
#undef ADD_DOT
#undef ALL
#undef ALL_FLOAT
#undef ZERO
#undef ZERO_FLOAT
#undef TO_FLOAT
#undef MULTIPLY_ADD
#undef ADD
#undef SMALLER
#undef LARGER
#undef TIMES_POWER
#undef NOT_BELOW
#undef LOAD
#undef STORE
