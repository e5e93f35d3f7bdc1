/* AdamW on some rows of a matrix, each with its own count of steps; for a CPU.
 *
 * A row is read, moved and put back while it is in the first cache, and the next ones are fetched
 * meanwhile: rows that lie apart are waited for, not computed. The arithmetic is update.py's; the
 * compiler must not contract it into fused multiply-adds, so that every compiler gives the same.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__has_attribute)
#if __has_attribute(target_clones)
#define EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#endif
#ifndef EACH_CPU
#define EACH_CPU
#endif

#define AHEAD 2 /* rows to fetch ahead */
#define LINE 16 /* floats in a line of cache */

struct rule {
    double lr, weight_decay, beta1, beta2, eps;
    double step; /* the parameter's count, this step included; for rows that catch up */
    double sign; /* -1 to maximize */
};

static int is_zero(const float *g, int64_t width) {
    uint32_t bits = 0;
    for (int64_t d = 0; d < width; d++) {
        uint32_t one;
        memcpy(&one, g + d, sizeof one);
        bits |= one & 0x7fffffffu; /* -0 is zero, NaN is not */
    }
    return bits == 0;
}

static void fetch(const float *x, int64_t width) {
    for (int64_t d = 0; d < width; d += LINE) __builtin_prefetch(x + d);
}

/* Moves rows at[first..last) of [V, width] matrices; rows first..last where there is no list. Rows
 * without a gradient stay as they are. With row_decay, rows catch up with what they missed. */
EACH_CPU static void move_rows(float *restrict p, const float *restrict g, float *restrict m,
                               float *restrict v, float *restrict row_step,
                               double *restrict row_decay, const int64_t *restrict at,
                               int64_t first, int64_t last, int64_t width,
                               const struct rule *rule) {
    const float b1c = (float)(1 - rule->beta1), b2 = (float)rule->beta2;
    const float b2c = (float)(1 - rule->beta2), sign = (float)rule->sign;
    for (int64_t n = first; n < last; n++) {
        const int64_t i = at ? at[n] : n;
        float *pi = p + i * width, *mi = m + i * width, *vi = v + i * width;
        const float *gi = g + i * width;
        if (at && n + AHEAD < last) {
            const int64_t next = at[n + AHEAD] * width;
            fetch(g + next, width), fetch(p + next, width);
            fetch(m + next, width), fetch(v + next, width);
        }
        if (is_zero(gi, width)) continue;
        double step = row_step[i] + 1.0, decay = 1 - rule->lr * rule->weight_decay;
        float m_kept = 1, v_kept = 1;
        if (row_decay) {
            const double missed = rule->step - step;
            step = rule->step;
            decay = row_decay[i]; /* holds this step's already */
            row_decay[i] = 1;
            m_kept = (float)pow(rule->beta1, missed);
            v_kept = (float)pow(rule->beta2, missed);
        }
        row_step[i] = (float)step;
        const double one = 1 - pow(rule->beta1, step), root = sqrt(1 - pow(rule->beta2, step));
        const float size = (float)(rule->lr * root / one), eps = (float)(rule->eps * root);
        const float kept = (float)decay;
        for (int64_t d = 0; d < width; d++) {
            const float grad = sign * gi[d], old = m_kept * mi[d];
            const float moment = old + b1c * (grad - old);
            const float square = b2 * (v_kept * vi[d]) + b2c * grad * grad;
            mi[d] = moment;
            vi[d] = square;
            pi[d] = kept * pi[d] - size * (moment / (sqrtf(square) + eps));
        }
    }
}

void elbowroom_move_rows(float *p, const float *g, float *m, float *v, float *row_step,
                         double *row_decay, const int64_t *at, int64_t count, int64_t width,
                         const struct rule *rule, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int64_t t = 0; t < threads; t++)
        move_rows(p, g, m, v, row_step, row_decay, at, count * t / threads,
                  count * (t + 1) / threads, width, rule);
}
