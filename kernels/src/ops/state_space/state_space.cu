// The state space recurrence of Mamba-2. Each thread computes one column of the state of a head, all steps in order.
#include "math.cuh"

struct Step {
    uint32_t row;
    uint32_t read;
    uint32_t write;
};

struct StateSpace {
    /// Rows of x of all heads, then b, then c of all groups.
    const float *mixed;
    const float *dt;
    const float *dt_bias;
    const float *a;
    const float *d;
    const Step *steps;
    /// Slots of (n_head, state_dim, head_dim).
    float *state;
    float *out;
    uint32_t n_step;
    uint32_t n_head;
    uint32_t head_dim;
    uint32_t n_group;
    uint32_t state_dim;
    uint32_t unused;
};

constexpr uint32_t THREADS = 64;

KERNEL(state_space, THREADS, StateSpace) {
    const uint32_t column = (uint32_t)place(), head = blockIdx.y;
    if (column >= args.head_dim) return;
    const uint64_t inner = (uint64_t)args.n_head * args.head_dim;
    const uint64_t both = (uint64_t)args.n_group * args.state_dim;
    const uint64_t slot = inner * args.state_dim;
    const uint64_t at_head = (uint64_t)head * args.state_dim * args.head_dim + column;
    const uint32_t group = head / (args.n_head / args.n_group);
    for (uint32_t s = 0; s < args.n_step; s++) {
        const Step step = args.steps[s];
        const float *mixed = args.mixed + step.row * (inner + 2 * both);
        const float *b = mixed + inner + (uint64_t)group * args.state_dim, *c = b + both;
        const float x = mixed[(uint64_t)head * args.head_dim + column];
        const float delta = softplus(args.dt[(uint64_t)step.row * args.n_head + head] + args.dt_bias[head]);
        const float decay = exponential(delta * args.a[head]);
        const bool begins = step.read == NONE;
        const float *from = args.state + (begins ? 0 : step.read) * slot + at_head;
        float *to = args.state + step.write * slot + at_head;
        float sum = 0.0f;
#pragma unroll 8
        for (uint32_t i = 0; i < args.state_dim; i++) {
            const float old = begins ? 0.0f : from[(uint64_t)i * args.head_dim];
            const float state = fmaf(b[i], delta * x, decay * old);
            to[(uint64_t)i * args.head_dim] = state;
            sum = fmaf(c[i], state, sum);
        }
        args.out[step.row * inner + (uint64_t)head * args.head_dim + column] = fmaf(args.d[head], x, sum);
    }
}
