/* Decoding on an x86-64 CPU: few rows times a matrix, and a decoder block for one token of each row;
   and the loss of training (softmax_loss.h).

   One row times a matrix takes as long as reading the matrix from memory, so the matrix is read once,
   in the order in which it lies there, and norm, bias, activation and residual are computed on the
   way. PyTorch's own threads share the work. native_library.py loads this file and describes its
   structures; product_tiles.h has the code that is compiled once for each instruction set.

   Letters: M rows, E columns of the matrix (inputs), N its rows (outputs), B sequences, H heads,
   K key-value heads, D head width, S positions. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Protected: functions of the same names elsewhere in the process do not replace these. */
#define EXPORT __attribute__((visibility("protected")))
#define INLINE static inline __attribute__((always_inline))
#define MIN(a, b) ((a) < (b) ? (a) : (b))

enum { PANEL = 32 };     /* rows of the matrix that are multiplied together */
enum { GROUP = 32 };     /* columns of an int4 matrix that share a step and a center */
enum { WORDS = 4 };      /* words of 32 bits in such a group of a row */
enum { PAIRS = 4 };      /* pairs of columns in such a word */
enum { AHEAD = 6144 };   /* bytes between the int4 weights in use and those to read next */
enum { AHEAD_INTEL = 4096 }; /* the same on Intel's processors, in every format */
enum { LARGEST = 32767 }; /* the largest whole number of a rounded row */
enum { SECTION = 512 };  /* columns whose products an int32 can sum, in int8 */
enum { ACTIVATED = 2048 }; /* numbers that a thread activates at a time */
enum { SPAN = 1 << 17 };  /* bytes of a matrix that a thread reads at a time */
enum { TURNS = 8 };       /* pieces of a matrix for each thread */
enum { MANY_ROWS = 128 }; /* rows of x that share an unpacked section of a panel */

enum { FLOAT32, INT8, INT4 };
enum { NO_NORM, LAYER_NORM, RMS_NORM };
enum { NONE, RELU, GELU, GELU_TANH, SILU, SWIGLU, RELU2 };

/* residual + activation(norm(x) W^T + bias) */
typedef struct {
    int64_t N, E;
    int32_t format, norm, activation;
    float epsilon;
    const float *gain, *shift; /* of the norm; RMS norm has no shift */
    const void *weight;        /* FLOAT32: (N, E); INT8: (P, E / 2, 32, 2); INT4: 16 bits, (P, E / 8, 32, 2) */
    const float *scale;        /* INT8: one of each row */
    const uint16_t *groups;    /* INT4: step and center as bfloat16, (P, E / 32, 2, 32) */
    const float *bias;         /* or NULL */
} Product;

/* A decoder block with norms before its layers. */
typedef struct {
    Product qkv, output, up, down;
    int64_t H, K, D;
} Block;

/* The keys and values of one layer, and what rotates and hides them. The cache has a row for each
   sequence, (B, K, capacity, D), or slots that a table gives to positions, (slots, K, D). */
typedef struct {
    float *keys, *values;
    int64_t capacity;
    int64_t longest;           /* positions of the longest sequence with its new token */
    const int32_t *table;      /* (sequences, table_stride): the slot of each position, or NULL */
    const int64_t *table_rows; /* (B,): the row of each sequence in the table */
    int64_t table_stride;
    const int64_t *lengths;    /* (B,): S of each sequence, or NULL where all have the longest */
    const float *cos, *sin;    /* (1 or B, D), or NULL */
    int64_t angle_stride;       /* D, or 0 where all rows share the angles */
    const uint8_t *allowed;    /* (B, longest), or NULL */
} Layer;

/* The threads and the instruction set that a call may use, and the vendor. */
typedef struct {
    void (*parallel)(void (*)(void *), void *, unsigned, unsigned); /* GOMP_parallel */
    int32_t threads;
    int32_t wide;              /* AVX-512 with VNNI */
    int32_t intel;             /* one of Intel's, which read memory best in several pages at once */
} Processor;

/* Work in numbered parts: every thread takes the next few until none is left. */
typedef struct Task {
    void (*run)(const struct Task *, int64_t first, int64_t last);
    const void *data;
    int64_t count, chunk, next;
} Task;

enum { LEAST_WORK = 1 << 15 }; /* multiplications that are worth another thread */

static void take_parts(void *data) {
    Task *task = data;
    for (;;) {
        int64_t first = __atomic_fetch_add(&task->next, task->chunk, __ATOMIC_RELAXED);
        if (first >= task->count) return;
        task->run(task, first, MIN(first + task->chunk, task->count));
    }
}

/* Run all parts, which have about `work` multiplications in all. */
static void for_each(const Processor *processor, int64_t count, int64_t chunk, int64_t work,
                     const void *data, void (*run)(const Task *, int64_t, int64_t)) {
    if (count == 0) return;

    Task task = {run, data, count, chunk, 0};
    int64_t threads = MIN(processor->threads, (count + chunk - 1) / chunk);
    threads = MIN(threads, work / LEAST_WORK);
    if (threads > 1)
        processor->parallel(take_parts, &task, (unsigned)threads, 0);
    else
        run(&task, 0, count);
}

/* Rows of x, rounded to whole numbers: x = unit * power * number. */
typedef struct {
    int16_t *numbers; /* (M, W): E filled up with zeros to a multiple of 32 */
    float *units;     /* (M,) */
    float *powers;    /* (M,): 1, or a power of two that would make the unit of a tiny row inexact */
    float *sums;      /* (M, W / 32): the sum of the numbers of each group */
} Rows;

typedef struct {
    const Product *product;
    const float *x, *residual;
    float *output;
    int64_t M, W;
    Rows rows;
    float *normalised; /* (M, E) if there is a norm */
    int intel;         /* reads several pages at once */
} Multiplication;

enum { ZEROS = PANEL * SECTION / GROUP }; /* where the zeros of a section begin */

/* Some columns of a panel as pairs of 16-bit numbers, in the order of a tile of two vectors, and the
   steps and zeros of their groups in int4. */
typedef struct {
    int16_t numbers[PANEL * SECTION] __attribute__((aligned(64)));
    float groups[2 * ZEROS]; /* the steps, then the zeros */
} Section;

typedef struct {
    const float *x;
    float *y;
    int64_t count;
    int32_t kind;
} Activation;

/* Rows of logits, which become the derivative of their losses. */
typedef struct {
    float *logits;          /* (M, V) */
    const int64_t *targets; /* (M,): a token, or `ignore`: no loss */
    const float *shares;    /* (M,): the weight of each row, or NULL */
    float *losses;          /* (M,) */
    int64_t V, ignore;
    float smoothing;
} Loss;

/* A probability less than e^LOWEST times the largest one counts as 0: a processor takes a hundred times
   as long for numbers that are nearly too small for a float. */
static const float LOWEST = -76;

typedef struct {
    const Block *block;
    const Layer *layer;
    const float *qkv; /* (B, (H + 2K) D) */
    float *heads;     /* (B, H D) */
    float *scratch;   /* (B, K, longest + D) */
} Attention;

/* The first part of `count` rows, all parts having about the same size, at most `most`. */
static int64_t even_part(int64_t count, int64_t most) {
    const int64_t parts = (count + most - 1) / most;
    return (count + parts - 1) / parts;
}

/* Panels that a thread takes at a time. Memory is read faster in long pieces, SPAN bytes or more; every
   thread takes about as many pieces as the others, up to TURNS. */
static int64_t panels_at_once(const Processor *processor, const Product *p, int64_t count) {
    const int64_t bytes = p->E * PANEL * (p->format == FLOAT32 ? 4 : 1) / (p->format == INT4 ? 2 : 1);
    const int64_t share = (count + processor->threads - 1) / processor->threads;
    const int64_t turns = MIN(share * bytes / SPAN, TURNS);
    return turns > 1 ? (share + turns - 1) / turns : share;
}

static int64_t round_up(int64_t n, int64_t size) { return (n + size - 1) / size * size; }

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

/* Where the key and the value of a position begin. */
INLINE int64_t slot_of(const Layer *l, const Block *block, int64_t b, int64_t k, int64_t s) {
    if (l->table) return (l->table[l->table_rows[b] * l->table_stride + s] * block->K + k) * block->D;
    return ((b * block->K + k) * l->capacity + s) * block->D;
}

INLINE int32_t pair_at(const int16_t *numbers) {
    int32_t pair;
    memcpy(&pair, numbers, sizeof pair);
    return pair;
}

/* e^x with an error of about one unit in the last place, in code that compilers vectorise. */
INLINE float exponential(float x) {
    x = x < -87.3f ? -87.3f : x;
    x = x > 88.0f ? 88.0f : x;
    float shifted = x * 1.44269504f + 12582912.0f; /* rounds to a whole number */
    float n = shifted - 12582912.0f;
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.0f + r * (1.0f + r * (0.5f + r * (0.166666667f + r * (0.0416666667f
              + r * (0.00833333333f + r * 0.00138888889f)))));
    uint32_t exponent, bits; /* the lowest bits of `shifted` are n */
    memcpy(&exponent, &shifted, sizeof exponent);
    memcpy(&bits, &p, sizeof bits);
    bits += exponent << 23;
    memcpy(&p, &bits, sizeof p);
    return p + (x - x); /* NaN stays NaN; without a branch, which would not be vectorised */
}

INLINE __attribute__((target("avx2,fma"))) float sum_of_8(__m256 v) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

#define TARGET __attribute__((target("avx2,fma")))
#define NAME(name) name##_avx2
#define LANES 8
#define TILE 6
#define CHAINS(R) 1
#define UNPACK_FROM 12
#define IN_MEMORY(sums) do { if ((sums) > 5) __asm__ volatile("" ::: "memory"); } while (0)
#define WIDE_ROWS 2
#define VI __m256i
#define VF __m256
#define WIDEN_INT8(p) _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)(p)))
#define WIDEN_BFLOAT(p) \
    _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(p))), 16))
#define AND(a, b) _mm256_and_si256(a, b)
#define ADD_WHOLE(a, b) _mm256_add_epi32(a, b)
#define SHIFT_RIGHT(v, bits) _mm256_srli_epi16(v, bits)
/* Products one after the other, into the register of their sum: gcc computes all of them first, runs
   out of the 16 registers, and copies every sum. */
#define ADD_DOT(sum, a, b) \
    do { \
        __m256i product = _mm256_madd_epi16(a, b); \
        __asm__ volatile("vpaddd %1, %0, %0" : "+x"(sum) : "x"(product)); \
    } while (0)
#define LOAD_WHOLE(p) _mm256_loadu_si256((const void *)(p))
#define STORE_WHOLE(p, v) _mm256_storeu_si256((void *)(p), v)
#define ALL(i) _mm256_set1_epi32(i)
#define ALL_FLOAT(x) _mm256_set1_ps(x)
#define ZERO _mm256_setzero_si256()
#define ZERO_FLOAT _mm256_setzero_ps()
#define TO_FLOAT(v) _mm256_cvtepi32_ps(v)
#define MULTIPLY_ADD(a, b, c) _mm256_fmadd_ps(a, b, c)
#define ADD(a, b) _mm256_add_ps(a, b)
#define SMALLER(a, b) _mm256_min_ps(a, b) /* b if one is NaN */
#define LARGER(a, b) _mm256_max_ps(a, b)
#define TIMES_POWER(x, n) \
    _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(_mm256_castps_si256(n), 23)))
#define NOT_BELOW(x, limit, y) _mm256_and_ps(y, _mm256_cmp_ps(x, limit, _CMP_NLT_UQ)) /* else 0 */
#define LOAD(p) _mm256_loadu_ps(p)
#define STORE(p, v) _mm256_storeu_ps(p, v)
#define SUM(v) sum_of_8(v)
#include "product_tiles.h"

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")))
#define NAME(name) name##_avx512
#define LANES 16
#define TILE 6
#define CHAINS(R) ((R) == 1 ? 4 : (R) == 2 ? 2 : 1)
#define UNPACK_FROM INT64_MAX
#define IN_MEMORY(sums)
#define WIDE_ROWS 6
#define VI __m512i
#define VF __m512
#define WIDEN_INT8(p) _mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)(p)))
#define WIDEN_BFLOAT(p) \
    _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(p))), 16))
#define AND(a, b) _mm512_and_si512(a, b)
#define ADD_WHOLE(a, b) _mm512_add_epi32(a, b)
#define SHIFT_RIGHT(v, bits) _mm512_srli_epi16(v, bits)
#define ADD_DOT(sum, a, b) sum = _mm512_dpwssd_epi32(sum, a, b)
#define LOAD_WHOLE(p) _mm512_loadu_si512((const void *)(p))
#define STORE_WHOLE(p, v) _mm512_storeu_si512((void *)(p), v)
#define ALL(i) _mm512_set1_epi32(i)
#define ALL_FLOAT(x) _mm512_set1_ps(x)
#define ZERO _mm512_setzero_si512()
#define ZERO_FLOAT _mm512_setzero_ps()
#define TO_FLOAT(v) _mm512_cvtepi32_ps(v)
#define MULTIPLY_ADD(a, b, c) _mm512_fmadd_ps(a, b, c)
#define ADD(a, b) _mm512_add_ps(a, b)
#define SMALLER(a, b) _mm512_min_ps(a, b) /* b if one is NaN */
#define LARGER(a, b) _mm512_max_ps(a, b)
#define TIMES_POWER(x, n) \
    _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_slli_epi32(_mm512_castps_si512(n), 23)))
#define NOT_BELOW(x, limit, y) _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), y)
#define LOAD(p) _mm512_loadu_ps(p)
#define STORE(p, v) _mm512_storeu_ps(p, v)
#define SUM(v) _mm512_reduce_add_ps(v)
#include "product_tiles.h"

/* The best instruction set of this processor: 0 none of them, 1 AVX2, 2 AVX-512 with VNNI. */
EXPORT int instruction_set(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
    int wide = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")
        && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
    return 1 + wide;
}

/* residual + activation(norm(x) W^T + bias) of M rows; 0, or 1 where there is no memory. */
EXPORT int multiply(const Processor *processor, const Product *product, int64_t M, const float *x,
                    const float *residual, float *output) {
    Multiplication m = {product, x, residual, output, M, round_up(product->E, GROUP), {0}, NULL,
                        processor->intel};
    int64_t normalised = product->norm == NO_NORM ? 0 : M * product->E;
    int64_t sums = M * (m.W / GROUP);
    float *memory = malloc((normalised + sums + 2 * M) * sizeof(float) + M * m.W * sizeof(int16_t));
    if (!memory) return 1;

    m.normalised = memory;
    m.rows.sums = memory + normalised;
    m.rows.units = m.rows.sums + sums;
    m.rows.powers = m.rows.units + M;
    m.rows.numbers = (int16_t *)(m.rows.powers + M);
    if (processor->wide)
        multiply_avx512(processor, &m);
    else
        multiply_avx2(processor, &m);
    free(memory);
    return 0;
}

/* The new keys and values into the cache, and the heads of one token of each of B rows. */
EXPORT int attend(const Processor *processor, const Block *block, const Layer *layer, int64_t B,
                  const float *qkv, float *heads) {
    float *scratch = malloc(B * block->K * (layer->longest + block->D) * sizeof(float));
    if (!scratch) return 1;

    Attention attention = {block, layer, qkv, heads, scratch};
    const int64_t work = 2 * B * block->H * block->D * layer->longest;
    for_each(processor, B * block->K, 1, work, &attention,
             processor->wide ? attend_avx512 : attend_avx2);
    free(scratch);
    return 0;
}

/* A block for one token of each of B rows; x (B, E) becomes its output. */
static int decode_block(const Processor *processor, const Block *block, const Layer *layer, int64_t B,
                        float *x) {
    int64_t heads = block->H * block->D;
    int64_t projected = heads + 2 * block->K * block->D;
    float *memory = malloc(B * (heads + projected + block->down.E) * sizeof(float));
    if (!memory) return 1;

    float *qkv = memory, *attended = qkv + B * projected, *middle = attended + B * heads;
    int failed = multiply(processor, &block->qkv, B, x, NULL, qkv);
    failed |= attend(processor, block, layer, B, qkv, attended);
    failed |= multiply(processor, &block->output, B, attended, x, x);
    failed |= multiply(processor, &block->up, B, x, NULL, middle);
    failed |= multiply(processor, &block->down, B, middle, x, x);
    free(memory);
    return failed;
}

/* Blocks on top of each other for one token of each of B rows; x (B, E) becomes their output. */
EXPORT int decode_blocks(const Processor *processor, const Block *blocks, const Layer *layers,
                         int64_t count, int64_t B, float *x) {
    for (int64_t i = 0; i < count; i++)
        if (decode_block(processor, blocks + i, layers + i, B, x)) return 1;
    return 0;
}

/* y = activation(x) of as many numbers; y may be x. */
EXPORT void activate(const Processor *processor, int32_t kind, int64_t count, const float *x, float *y) {
    const Activation activation = {x, y, count, kind};
    const int64_t parts = (count + ACTIVATED - 1) / ACTIVATED;
    for_each(processor, parts, 1, 8 * count, &activation,
             processor->wide ? activate_avx512 : activate_avx2);
}

/* The cross-entropy of M rows of logits, which become its derivative. */
EXPORT void softmax_loss(const Processor *processor, int64_t M, int64_t V, float *logits,
                         const int64_t *targets, int64_t ignore, const float *shares,
                         float smoothing, float *losses) {
    const Loss loss = {logits, targets, shares, losses, V, ignore, smoothing};
    for_each(processor, M, 4, 8 * M * V, &loss,
             processor->wide ? loss_rows_avx512 : loss_rows_avx2);
}

#else

EXPORT int instruction_set(void) { return 0; }

#endif

/* A file that was compiled from another source: native_library.py compares the number of its
   functions' meaning and of the memory orders, and the place of every field. */
EXPORT const int32_t version = 5;

typedef struct {
    const char *name;
    int64_t offset, size;
} Field;

#define FIELD(type, name) {#type "." #name, offsetof(type, name), sizeof(((type *)0)->name)}
#define WHOLE(type) {#type, 0, sizeof(type)}
EXPORT const Field structure_fields[] = {
    FIELD(Product, N), FIELD(Product, E), FIELD(Product, format), FIELD(Product, norm),
    FIELD(Product, activation), FIELD(Product, epsilon), FIELD(Product, gain), FIELD(Product, shift),
    FIELD(Product, weight), FIELD(Product, scale), FIELD(Product, groups), FIELD(Product, bias),
    WHOLE(Product),
    FIELD(Block, qkv), FIELD(Block, output), FIELD(Block, up), FIELD(Block, down), FIELD(Block, H),
    FIELD(Block, K), FIELD(Block, D), WHOLE(Block),
    FIELD(Layer, keys), FIELD(Layer, values), FIELD(Layer, capacity), FIELD(Layer, longest),
    FIELD(Layer, table), FIELD(Layer, table_rows), FIELD(Layer, table_stride), FIELD(Layer, lengths),
    FIELD(Layer, cos), FIELD(Layer, sin), FIELD(Layer, angle_stride), FIELD(Layer, allowed),
    WHOLE(Layer),
    FIELD(Processor, parallel), FIELD(Processor, threads), FIELD(Processor, wide),
    FIELD(Processor, intel), WHOLE(Processor),
    {NULL, 0, 0},
};

/* Python takes this file for a module because of its name, and asks this function for it. */
extern __attribute__((weak)) void *PyExc_ImportError;
extern __attribute__((weak)) void PyErr_SetString(void *, const char *);
EXPORT void *PyInit_decode_kernels(void) {
    if (PyErr_SetString)
        PyErr_SetString(PyExc_ImportError, "qkv.nn.native.decode_kernels has kernels in C and is not a "
                                           "Python module; qkv.nn.native.native_library loads it");
    return NULL;
}
