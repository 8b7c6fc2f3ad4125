// The part of CUDA that the kernels use, for a C++ compiler, and the execution of a block of threads.
//
// Each CUDA thread is a coroutine that runs until a barrier or the end. Lanes, warps and blocks run in
// ascending or in descending order, so that a dependence on the order changes results. It is an error if
// some threads do not reach a barrier.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __shared__ static
#define __align__(n) alignas(n)
#define __global__

struct Place3 {
    uint32_t x, y, z;
};
static Place3 threadIdx, blockIdx, blockDim, gridDim;

struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};

struct alignas(8) float2 {
    float x, y;
};

struct alignas(16) float4 {
    float x, y, z, w;
};

namespace emulated {

enum class Wait { NONE, WARP, BLOCK, END };

constexpr uint32_t WARP = 32, MAX_THREADS = 1024, STACK = 1 << 16;

/// A copy that a thread has started. Its destination is undefined until the thread has waited for it.
struct Copy {
    void *to;
    const void *from;
    size_t size;
};

struct Fiber {
    Wait wait;
    bool odd;
    /// Copies by group; the last group is still open.
    std::vector<std::vector<Copy>> copies;
#if defined(__x86_64__)
    void *stack_pointer;
#else
    ucontext_t context;
#endif
};

static std::vector<Fiber> fibers(MAX_THREADS);
static char *stacks = static_cast<char *>(malloc((size_t)STACK * MAX_THREADS));
static uint32_t exchanged[2][MAX_THREADS];
static uint32_t current;
static void (*body)(const void *);
static const void *body_args;

#if defined(__x86_64__)
static void *scheduler;
/// Does nothing, but the compiler cannot know that. After a call it reads shared memory again; after an `asm` it need
/// not, because no `asm` may access a static variable that it is not given.
extern "C" void emulated_unknown();
asm(".text\n.local emulated_unknown\n.type emulated_unknown, @function\nemulated_unknown:\n  ret\n");

/// Saves where this stack stops and continues where another did. It jumps: the processor would predict that a `ret`
/// goes to the caller on this stack, and be wrong each time.
static __forceinline__ void switch_stack(void **save, void *load) {
    emulated_unknown();
    asm volatile(
        // The compiler may use 128 bytes below the stack pointer.
        "sub $128, %%rsp\n  push %%rbp\n  lea 1f(%%rip), %%rax\n  push %%rax\n"
        "mov %%rsp, (%%rdi)\n  mov %%rsi, %%rsp\n  pop %%rax\n  jmp *%%rax\n"
        "1:\n  pop %%rbp\n  add $128, %%rsp\n"
        : "+D"(save), "+S"(load)
        :
        : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2",
          "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15",
          "cc", "memory");
    emulated_unknown();
}
static void leave() { switch_stack(&fibers[current].stack_pointer, scheduler); }
static void enter() { switch_stack(&scheduler, fibers[current].stack_pointer); }
#else
static ucontext_t scheduler;
static void leave() { swapcontext(&fibers[current].context, &scheduler); }
static void enter() { swapcontext(&scheduler, &fibers[current].context); }
#endif

static void begin() {
    body(body_args);
    fibers[current].wait = Wait::END;
    leave();
}

static void prepare(uint32_t thread) {
    Fiber &fiber = fibers[thread];
    fiber.wait = Wait::NONE;
    fiber.odd = false;
    fiber.copies.assign(1, {});
    char *stack = stacks + (size_t)STACK * thread;
#if defined(__x86_64__)
    // A switch pops where to continue. The last word is a return address that is never used.
    void **top = reinterpret_cast<void **>((reinterpret_cast<uintptr_t>(stack) + STACK) & ~(uintptr_t)15);
    *--top = nullptr;
    *--top = reinterpret_cast<void *>(begin);
    fiber.stack_pointer = top;
#else
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = stack;
    fiber.context.uc_stack.ss_size = STACK;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, begin, 0);
#endif
}

static void wait_for(Wait others) {
    fibers[current].wait = others;
    leave();
}

/// Returns the value of lane `source` of this warp. Two sets of slots alternate, so that no lane overwrites
/// a value that another lane has not read.
template <class T>
static T exchange(T value, uint32_t source) {
    static_assert(sizeof(T) == 4, "words");
    uint32_t *places = exchanged[fibers[current].odd];
    fibers[current].odd = !fibers[current].odd;
    memcpy(&places[current], &value, 4);
    wait_for(Wait::WARP);
    memcpy(&value, &places[current / WARP * WARP + source % WARP], 4);
    return value;
}

static const char *wrong_copy;

static void begin_copy(uint64_t to_address, const void *from, size_t size) {
    void *to = reinterpret_cast<void *>(to_address);
    if (to_address % size != 0 || reinterpret_cast<uint64_t>(from) % size != 0) {
        wrong_copy = "a copy from or to an address that is no multiple of its size";
    }
    memset(to, 0xa5, size);
    fibers[current].copies.back().push_back({to, from, size});
}

static void end_group() { fibers[current].copies.emplace_back(); }

/// Performs the copies that the thread has started, except those of the last `later` groups.
static void wait_for_groups(size_t later) {
    auto &copies = fibers[current].copies;
    while (copies.size() > later + 1) {
        for (const Copy &copy : copies.front()) memcpy(copy.to, copy.from, copy.size);
        copies.erase(copies.begin());
    }
}

/// `c += a . b` of 16 rows and 8 columns, in the fragment layout of tensor cores.
static void add_products(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    static uint32_t given[2][MAX_THREADS][6];
    auto &lanes = given[fibers[current].odd];
    fibers[current].odd = !fibers[current].odd;
    memcpy(lanes[current], a, sizeof a);
    memcpy(lanes[current] + 4, b, sizeof b);
    wait_for(Wait::WARP);
    const auto &first = lanes + current / WARP * WARP;
    const uint32_t g = current % WARP / 4, t = current % 4;
    for (uint32_t i = 0; i < 4; i++) {
        for (uint32_t depth = 0; depth < 32; depth++) {
            // Lane `depth / 4 % 4` holds the word; the second half of the depth is in the next register.
            const uint32_t lane = depth / 4 % 4, byte = 8 * (depth % 4), far = depth / 16;
            const uint32_t row = first[4 * g + lane][i / 2 + 2 * far];
            const uint32_t column = first[4 * (2 * t + i % 2) + lane][4 + far];
            c[i] += (int32_t)(int8_t)(row >> byte) * (int32_t)(int8_t)(column >> byte);
        }
    }
}

/// Runs one block. Returns nullptr or an error message.
static const char *run_block(uint32_t n_thread, bool is_falling) {
    const uint32_t n_warp = (n_thread + WARP - 1) / WARP;
    for (uint32_t thread = 0; thread < n_thread; thread++) prepare(thread);
    for (;;) {
        uint32_t at_block = 0, at_end = 0;
        for (uint32_t w = 0; w < n_warp; w++) {
            const uint32_t first = (is_falling ? n_warp - 1 - w : w) * WARP;
            const uint32_t n = n_thread - first < WARP ? n_thread - first : WARP;
            uint32_t count[4];
            do {
                count[0] = count[1] = count[2] = count[3] = 0;
                for (uint32_t i = 0; i < n; i++) {
                    current = first + (is_falling ? n - 1 - i : i);
                    Fiber &fiber = fibers[current];
                    if (fiber.wait == Wait::NONE || fiber.wait == Wait::WARP) {
                        fiber.wait = Wait::NONE;
                        threadIdx = {current, 0, 0};
                        enter();
                    }
                    count[(int)fiber.wait]++;
                }
                if (count[(int)Wait::WARP] != 0 && count[(int)Wait::WARP] != n) {
                    return "some lanes of a warp wait for others that do not come";
                }
            } while (count[(int)Wait::WARP] != 0);
            at_block += count[(int)Wait::BLOCK];
            at_end += count[(int)Wait::END];
        }
        if (wrong_copy != nullptr) return wrong_copy;
        if (at_end == n_thread) return nullptr;
        if (at_block != n_thread) return "some threads of a block wait for others that do not come";
        for (uint32_t thread = 0; thread < n_thread; thread++) fibers[thread].wait = Wait::NONE;
    }
}

static const char *run(void (*kernel)(const void *), const void *args, const uint32_t *blocks,
                       uint32_t n_thread, bool is_falling) {
    if (n_thread == 0 || n_thread > MAX_THREADS) return "a block has 1 to 1024 threads";
    body = kernel;
    body_args = args;
    gridDim = {blocks[0], blocks[1], blocks[2]};
    blockDim = {n_thread, 1, 1};
    const uint64_t n = (uint64_t)blocks[0] * blocks[1] * blocks[2];
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t block = is_falling ? n - 1 - i : i;
        blockIdx = {(uint32_t)(block % blocks[0]), (uint32_t)(block / blocks[0] % blocks[1]),
                    (uint32_t)(block / blocks[0] / blocks[1])};
        if (const char *wrong = run_block(n_thread, is_falling)) return wrong;
    }
    return nullptr;
}

static inline float half_to_float(uint16_t bits) {
    const uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
    float value;
    if (exponent == 31) {
        const uint32_t word = 0x7f800000u | fraction << 13;
        memcpy(&value, &word, 4);
    } else {
        value = exponent == 0 ? ldexpf((float)fraction, -24)
                              : ldexpf((float)(fraction | 1024), (int)exponent - 25);
    }
    return bits >> 15 ? -value : value;
}

} // namespace emulated

#define KERNEL_GIVEN(name, threads, Args, least)                                                  \
    static void name##_thread(const Args args);                                                   \
    static void name##_body(const void *args) { name##_thread(*static_cast<const Args *>(args)); } \
    extern "C" const char *name##_launch(const void *args, uint64_t size, const uint32_t *blocks, \
                                         uint32_t n_thread, uint32_t shared_bytes,                \
                                         uint32_t is_falling) {                                   \
        if (size != sizeof(Args)) return "the struct of arguments has another size";              \
        if (n_thread > (threads)) return "more threads than the kernel says";                     \
        if (shared_bytes < (least)) return "blocks share more than they are given";               \
        return emulated::run(name##_body, args, blocks, n_thread, is_falling != 0);               \
    }                                                                                             \
    static void name##_thread(const Args args)
#define KERNEL(name, threads, Args) KERNEL_GIVEN(name, threads, Args, 0)
#define KERNEL_SHARING(name, threads, Args, Shared) KERNEL_GIVEN(name, threads, Args, sizeof(Shared))

static inline void __syncthreads() { emulated::wait_for(emulated::Wait::BLOCK); }
static inline void __syncwarp() { emulated::wait_for(emulated::Wait::WARP); }

template <class T>
static inline T __shfl_sync(uint32_t, T value, uint32_t source) {
    return emulated::exchange(value, source);
}
template <class T>
static inline T __shfl_xor_sync(uint32_t, T value, uint32_t mask) {
    return emulated::exchange(value, threadIdx.x % emulated::WARP ^ mask);
}

template <class To, class From>
static inline To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline uint32_t __float_as_uint(float x) { return bits_as<uint32_t>(x); }
static inline float __uint_as_float(uint32_t x) { return bits_as<float>(x); }
static inline int64_t __double_as_longlong(double x) { return bits_as<int64_t>(x); }
static inline double __longlong_as_double(int64_t x) { return bits_as<double>(x); }

static inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
    return (uint32_t)(((uint64_t)high << 32 | low) >> (shift & 31));
}

static inline int __popc(uint32_t bits) { return __builtin_popcount(bits); }

static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t out = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t which = selector >> (4 * i) & 15;
        uint32_t byte = (uint32_t)(bytes >> (8 * (which & 7))) & 255;
        // The fourth bit of the selector replicates the sign.
        if (which & 8) byte = byte & 128 ? 255 : 0;
        out |= byte << (8 * i);
    }
    return out;
}
