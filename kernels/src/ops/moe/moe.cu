// Mixture-of-experts layers.
#include "math.cuh"
#include "matmul.cuh"

constexpr uint32_t MAX_EXPERTS = 2048;
constexpr uint32_t MAX_GROUPS = 128;
/// Lower limit of the divisor when weights are normalised: the smallest normal number in half precision.
constexpr float SMALLEST_SUM = 6.1035156e-5f;

struct Route {
    const float *logits;
    /// (n_expert), or null.
    const float *bias;
    /// Given experts, (rows, n_used), or null.
    const uint32_t *given;
    uint32_t *experts;
    float *weights;
    uint32_t n_expert;
    uint32_t n_used;
    uint32_t n_group;
    uint32_t n_group_used;
    /// 0: sigmoid, 1: softmax, 2: square root of softplus.
    uint32_t gating;
    uint32_t is_normalised;
    float scale;
    uint32_t unused;
};

/// A value and its index; NONE for no value.
struct Place {
    float value;
    uint32_t index;

    /// Of equal values the first one; a value before none.
    __device__ __forceinline__ void take_better(Place other) {
        if (other.index == NONE) return;
        const bool better = index == NONE || other.value > value ||
                            (other.value == value && other.index < index);
        if (better) *this = other;
    }
};

/// Removes the largest values from an array that all lanes of the warp can read, one after another, and writes
/// their indices in descending order. One warp.
DEVICE void largest(float *values, uint32_t *taken, uint32_t n, uint32_t n_wanted, uint32_t *places) {
    for (uint32_t i = lane(); i < n; i += LANES) taken[i] = 0;
    for (uint32_t wanted = 0; wanted < n_wanted; wanted++) {
        Place best = {0.0f, NONE};
        for (uint32_t i = lane(); i < n; i += LANES) {
            if (taken[i] == 0) best.take_better(Place{values[i], i});
        }
        for (uint32_t half = LANES / 2; half > 0; half /= 2) {
            Place other;
            other.value = __shfl_xor_sync(ALL_LANES, best.value, half);
            other.index = __shfl_xor_sync(ALL_LANES, best.index, half);
            best.take_better(other);
        }
        best.index = __shfl_sync(ALL_LANES, best.index, 0);
        // All lanes have read the value that is removed.
        __syncwarp();
        if (lane() == 0) {
            places[wanted] = best.index;
            taken[best.index] = 1;
        }
        __syncwarp();
    }
}

/// Chooses the experts of one row. One warp.
KERNEL(route, 32, Route) {
    __shared__ float probabilities[MAX_EXPERTS], scores[MAX_EXPERTS];
    __shared__ uint32_t taken[MAX_EXPERTS], places[MAX_EXPERTS];
    __shared__ float groups[MAX_GROUPS];
    __shared__ uint32_t kept[MAX_GROUPS];
    const uint32_t n = args.n_expert;
    const float *logits = args.logits + (uint64_t)blockIdx.x * n;
    if (args.gating == 1) {
        float most = -__uint_as_float(0x7f800000u);
        for (uint32_t i = lane(); i < n; i += LANES) most = fmaxf(most, logits[i]);
        most = max_lanes(most);
        for (uint32_t i = lane(); i < n; i += LANES) scores[i] = exponential(logits[i] - most);
        __syncwarp();
        float sum = 0.0f;
        for (uint32_t i = 0; i < n; i++) sum += scores[i];
        for (uint32_t i = lane(); i < n; i += LANES) probabilities[i] = scores[i] / sum;
    } else if (args.gating == 2) {
        for (uint32_t i = lane(); i < n; i += LANES) probabilities[i] = sqrtf(softplus(logits[i]));
    } else {
        for (uint32_t i = lane(); i < n; i += LANES) probabilities[i] = sigmoid(logits[i]);
    }
    __syncwarp();
    for (uint32_t i = lane(); i < n; i += LANES) {
        scores[i] = probabilities[i] + (args.bias == nullptr ? 0.0f : args.bias[i]);
    }
    __syncwarp();
    if (args.n_group > 1 && args.n_group_used < args.n_group) {
        // The score of a group is the sum of its two best experts.
        const uint32_t len = n / args.n_group;
        for (uint32_t group = 0; group < args.n_group; group++) {
            const uint32_t n_best = min_of(2, len);
            largest(scores + group * len, taken, len, n_best, places);
            float good = 0.0f;
            for (uint32_t i = 0; i < n_best; i++) good += scores[group * len + places[i]];
            if (lane() == 0) groups[group] = good;
            __syncwarp();
        }
        largest(groups, taken, args.n_group, args.n_group_used, kept);
        for (uint32_t i = lane(); i < len * args.n_group; i += LANES) {
            bool keep = false;
            for (uint32_t j = 0; j < args.n_group_used; j++) keep = keep || kept[j] == i / len;
            if (!keep) scores[i] = -__uint_as_float(0x7f800000u);
        }
        __syncwarp();
    }
    if (args.given == nullptr) {
        largest(scores, taken, n, args.n_used, places);
    } else {
        const uint32_t *given = args.given + (uint64_t)blockIdx.x * args.n_used;
        for (uint32_t i = lane(); i < args.n_used; i += LANES) places[i] = given[i];
        __syncwarp();
    }
    float sum = 0.0f;
    for (uint32_t i = 0; i < args.n_used; i++) sum += probabilities[places[i]];
    const float divisor = args.is_normalised ? fmaxf(sum, SMALLEST_SUM) : 1.0f;
    for (uint32_t i = lane(); i < args.n_used; i += LANES) {
        const uint64_t at = (uint64_t)blockIdx.x * args.n_used + i;
        args.experts[at] = places[i];
        args.weights[at] = probabilities[places[i]] / divisor * args.scale;
    }
}

struct ChooseAll {
    uint32_t *experts;
    float *weights;
    uint32_t n_used;
    uint32_t len;
};

KERNEL(choose_all, 256, ChooseAll) {
    const uint32_t i = (uint32_t)place();
    if (i >= args.len) return;
    args.experts[i] = i % args.n_used;
    args.weights[i] = 1.0f;
}

struct GroupSlots {
    const uint32_t *experts;
    /// Slots sorted by expert, in order for each expert.
    uint32_t *order;
    /// Up to `width` slots of one expert each; groups past the last one are empty.
    Group *groups;
    uint32_t n_slot;
    uint32_t n_expert;
    uint32_t width;
    uint32_t capacity;
};

/// Sorts slots by expert, so that the weights of an expert are read once. One block.
KERNEL(group_slots, 256, GroupSlots) {
    __shared__ uint32_t counts[MAX_EXPERTS], starts[MAX_EXPERTS], first_groups[MAX_EXPERTS];
    for (uint32_t expert = threadIdx.x; expert < args.n_expert; expert += blockDim.x) {
        uint32_t count = 0;
        for (uint32_t slot = 0; slot < args.n_slot; slot++) count += args.experts[slot] == expert;
        counts[expert] = count;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t start = 0, group = 0;
        for (uint32_t expert = 0; expert < args.n_expert; expert++) {
            starts[expert] = start;
            first_groups[expert] = group;
            start += counts[expert];
            group += (counts[expert] + args.width - 1) / args.width;
        }
        for (; group < args.capacity; group++) args.groups[group] = Group{0, 0, 0};
    }
    __syncthreads();
    for (uint32_t expert = threadIdx.x; expert < args.n_expert; expert += blockDim.x) {
        uint32_t at = starts[expert];
        const uint32_t end = at + counts[expert];
        for (uint32_t slot = 0; slot < args.n_slot && at < end; slot++) {
            if (args.experts[slot] == expert) args.order[at++] = slot;
        }
        uint32_t group = first_groups[expert];
        for (uint32_t start = starts[expert]; start < end; start += args.width) {
            args.groups[group++] = Group{expert, start, min_of(args.width, end - start)};
        }
    }
}

struct Combine {
    const float *x;
    const float *weights;
    float *out;
    uint64_t dim;
    uint64_t len;
    uint32_t n_used;
};

/// Sums the expert outputs of each row with the routing weights, in order of choice.
KERNEL(combine_experts, 256, Combine) {
    const uint64_t i = place();
    if (i >= args.len) return;
    const uint64_t row = i / args.dim, column = i % args.dim;
    float sum = 0.0f;
    for (uint32_t slot = 0; slot < args.n_used; slot++) {
        const uint64_t at = row * args.n_used + slot;
        sum += args.weights[at] * args.x[at * args.dim + column];
    }
    args.out[i] = sum;
}

struct ExpertBias {
    float *x;
    const float *bias;
    const uint32_t *experts;
    uint64_t dim;
    uint64_t len;
};

KERNEL(add_expert_bias, 256, ExpertBias) {
    const uint64_t i = place();
    if (i < args.len) args.x[i] += args.bias[args.experts[i / args.dim] * args.dim + i % args.dim];
}

struct ExpertScale {
    float *x;
    const float *factors;
    const uint32_t *experts;
    uint64_t dim;
    uint64_t len;
};

KERNEL(scale_experts, 256, ExpertScale) {
    const uint64_t i = place();
    if (i < args.len) args.x[i] *= args.factors[args.experts[i / args.dim]];
}
