// Sums of products of signed bytes on tensor cores: exact integers.
#pragma once
#include "common.cuh"

/// `c += a . b` for 16 rows and 8 columns of 32 bytes. Lane `4 g + t` holds words `t` and `t + 4` of rows or
/// columns: `a` has word `t` of rows g and g + 8, then word `t + 4` of both; `b` has both words of column g; `c`
/// has row g, columns 2 t and 2 t + 1, then row g + 8 (PTX ISA, "Matrix fragments for mma.m16n8k32").
DEVICE void add_products(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#ifdef __CUDACC__
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    emulated::add_products(c, a, b);
#endif
}

/// `c += a . b` for 16 bytes: words `t` only.
DEVICE void add_products(int32_t (&c)[4], const uint32_t (&a)[2], uint32_t b) {
#ifdef __CUDACC__
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
#else
    emulated::add_products(c, {a[0], a[1], 0, 0}, {b, 0});
#endif
}
