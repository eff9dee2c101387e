/* The cross-entropy of rows of logits and its derivative, compiled for each instruction set. */

/* The largest of V logits. */
INLINE TARGET float NAME(largest)(const float *x, int64_t V) {
    VF most[4] = {ALL_FLOAT(-INFINITY), ALL_FLOAT(-INFINITY), ALL_FLOAT(-INFINITY), ALL_FLOAT(-INFINITY)};
    int64_t i = 0;
    for (; i + 4 * LANES <= V; i += 4 * LANES)
        UNROLL for (int k = 0; k < 4; k++) most[k] = LARGER(LOAD(x + i + k * LANES), most[k]);

    float lanes[LANES];
    STORE(lanes, LARGER(LARGER(most[0], most[1]), LARGER(most[2], most[3])));
    float result = -INFINITY;
    for (int lane = 0; lane < LANES; lane++) result = lanes[lane] > result ? lanes[lane] : result;
    for (; i < V; i++) result = x[i] > result ? x[i] : result;
    return result;
}

/* e^(x - most) in place of each logit x, 0 below e^LOWEST. Returns their sum, and in `distance` that of
   x - most, which is far more precise than the sum of the logits. */
INLINE TARGET float NAME(exponentials_below)(float *x, int64_t V, const float most, float *distance) {
    VF sum[4] = {ZERO_FLOAT, ZERO_FLOAT, ZERO_FLOAT, ZERO_FLOAT};
    VF apart[4] = {ZERO_FLOAT, ZERO_FLOAT, ZERO_FLOAT, ZERO_FLOAT};
    int64_t i = 0;
    for (; i + 4 * LANES <= V; i += 4 * LANES)
        UNROLL for (int k = 0; k < 4; k++) {
            const VF below = LOAD(x + i + k * LANES) - ALL_FLOAT(most);
            const VF power = NOT_BELOW(below, ALL_FLOAT(LOWEST), NAME(exponentials)(below));
            STORE(x + i + k * LANES, power);
            sum[k] = ADD(sum[k], power);
            apart[k] = ADD(apart[k], below);
        }

    float total = SUM(ADD(ADD(sum[0], sum[1]), ADD(sum[2], sum[3])));
    *distance = SUM(ADD(ADD(apart[0], apart[1]), ADD(apart[2], apart[3])));
    for (; i < V; i++) {
        const float below = x[i] - most;
        x[i] = below < LOWEST ? 0 : exponential(below);
        total += x[i];
        *distance += below;
    }
    return total;
}

/* The loss of some rows; each row of logits becomes its derivative. */
static TARGET void NAME(loss_rows)(const Task *task, int64_t begin, int64_t end) {
    const Loss *l = task->data;
    const int64_t V = l->V;
    for (int64_t row = begin; row < end; row++) {
        float *x = l->logits + row * V;
        const int64_t target = l->targets[row];
        if (target == l->ignore) {
            memset(x, 0, V * sizeof(float));
            l->losses[row] = 0;
            continue;
        }

        const float share = l->shares ? l->shares[row] : 1;
        const float at_target = x[target];
        const float most = NAME(largest)(x, V);
        float distance;
        const float sum = NAME(exponentials_below)(x, V, most, &distance);
        const float log_sum = logf(sum);
        float loss = (1 - l->smoothing) * (most - at_target + log_sum);
        if (l->smoothing != 0) loss += l->smoothing * (log_sum - distance / (float)V);
        l->losses[row] = share * loss;

        /* The probabilities, less the smoothed target */
        const float factor = share / sum, uniform = share * l->smoothing / (float)V;
        _Pragma("omp simd") for (int64_t i = 0; i < V; i++) x[i] = x[i] * factor - uniform;
        x[target] -= share * (1 - l->smoothing);
    }
}
