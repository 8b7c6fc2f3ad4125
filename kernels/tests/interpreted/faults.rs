//! Faults that the interpreter must find, next to correct versions of the same code.

use kernels::cuda::device::Grid;

use super::arithmetic::{arithmetic, products};
use super::memory::WARP;
use super::{Order, State, program};

/// Prologue of all kernels: `%r1` is the thread index, `%r2` four times that, `%rd1` the address of 256
/// bytes, of which the host has written the first half, `%rd2` the thread's word in them.
const BEGIN: &str = "
    mov.u32 %r1, %tid.x;
    shl.b32 %r2, %r1, 2;
    ld.param.u64 %rd1, [kernel_param_0];
    cvt.u64.u32 %rd9, %r2;
    add.s64 %rd2, %rd1, %rd9;
    mov.u32 %r3, %ctaid.x;
";

/// Runs a kernel with `n_thread` threads in each of two blocks; returns the fault found, if any.
fn found(body: &str, n_thread: u32, order: Order) -> Option<String> {
    let text = format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n
        .global .align 4 .u32 table[8] = {{1, 2, 3, 4, 5, 6, 7, 8}};
        .global .align 4 .u32 next[8] = {{9}};
        .visible .entry kernel(\n.param .align 8 .b8 kernel_param_0[8]\n)\n.maxntid 128, 1, 1\n{{
        .shared .align 16 .b8 shared[1024];
        {BEGIN}{body}
        ret;\n}}\n"
    );
    let mut state = State::default();
    let address = state.memory.allocate(256);
    let (tracked, at) = state.memory.find(address).expect("what was allocated");
    tracked.put(at, &[1; 128]);
    let grid = Grid {
        blocks: [2, 1, 1],
        threads: n_thread,
    };
    let program = &program::parse(&text)["kernel"];
    let params = address.to_le_bytes();
    state.run(program, grid, &params, 0, order).err()
}

/// Description, threads, instructions, and part of the expected message.
const KERNELS: &[(&str, u32, &str, Option<&str>)] = &[
    (
        "a neighbour's word behind a barrier",
        64,
        "st.shared.u32 [%r2], %r1; bar.sync 0; xor.b32 %r4, %r2, 252; ld.shared.u32 %r5, [%r4];",
        None,
    ),
    (
        "a neighbour's word",
        64,
        "st.shared.u32 [%r2], %r1; xor.b32 %r4, %r2, 4; ld.shared.u32 %r5, [%r4];",
        Some("another thread has written"),
    ),
    (
        "a word that a neighbour has read",
        64,
        "st.shared.u32 [%r2], %r1; bar.sync 0; xor.b32 %r4, %r2, 4; ld.shared.u32 %r5, [%r4];
        st.shared.u32 [%r2], %r5;",
        Some("another thread has read"),
    ),
    (
        "a word that all have read",
        64,
        "ld.global.u32 %r5, [%rd1]; st.shared.u32 [%r2], %r5; bar.sync 0; ld.shared.u32 %r5, [0];
        setp.eq.s32 %p1, %r1, 63; @%p1 st.shared.u32 [0], %r5;",
        Some("another thread has read"),
    ),
    (
        "a word of the same warp behind its barrier",
        64,
        "st.shared.u32 [%r2], %r1; bar.warp.sync -1; xor.b32 %r4, %r2, 124; ld.shared.u32 %r5, [%r4];",
        None,
    ),
    (
        "a word of another warp behind the barrier of a warp",
        64,
        "st.shared.u32 [%r2], %r1; bar.warp.sync -1; xor.b32 %r4, %r2, 252; ld.shared.u32 %r5, [%r4];",
        Some("another thread has"),
    ),
    (
        "a word behind a barrier of other lanes",
        32,
        "st.shared.u32 [%r2], %r1; setp.lt.u32 %p1, %r1, 16; @%p1 bar.warp.sync 65535;
        xor.b32 %r4, %r2, 64; ld.shared.u32 %r5, [%r4];",
        Some("another thread has written"),
    ),
    (
        "a shuffle in place of a barrier",
        32,
        "st.shared.u32 [%r2], %r1; shfl.sync.bfly.b32 %r4|%p1, %r1, 1, 31, -1; xor.b32 %r4, %r2, 4;
        ld.shared.u32 %r5, [%r4];",
        Some("another thread has written"),
    ),
    (
        "one word of all lanes",
        32,
        "st.shared.u32 [0], %r1;",
        Some("another thread has written"),
    ),
    (
        "behind the end",
        64,
        "ld.global.u32 %r4, [%rd2+4];",
        Some("outside of what was allocated, in global memory"),
    ),
    (
        "behind the end of what is shared",
        64,
        "st.shared.u32 [%r2+772], %r1;",
        Some("outside of what was allocated, in shared memory"),
    ),
    (
        "behind the end of the arguments",
        1,
        "ld.param.u64 %rd3, [kernel_param_0+8];",
        Some("outside of what was allocated, in arguments"),
    ),
    (
        "half of one word and half of the next",
        1,
        "ld.global.u32 %r4, [%rd2+2];",
        Some("no multiple of its length"),
    ),
    (
        "a barrier for some lanes",
        32,
        "setp.lt.u32 %p1, %r1, 7; @%p1 bar.sync 0;",
        Some("not all lanes"),
    ),
    (
        "a barrier for one warp",
        64,
        "setp.lt.u32 %p1, %r1, 32; @%p1 bar.sync 0;",
        Some("some threads of a block wait"),
    ),
    (
        "a shuffle of lanes that are elsewhere",
        32,
        "setp.lt.u32 %p1, %r1, 7; @%p1 bra $L1; shfl.sync.idx.b32 %r4, %r1, 0, 31, -1; $L1:",
        Some("some lanes of a warp wait"),
    ),
    (
        "lanes that part and meet before a shuffle",
        32,
        "setp.lt.u32 %p1, %r1, 7; @%p1 bra $L1; add.s32 %r1, %r1, 1; $L1:
        shfl.sync.idx.b32 %r4, %r1, 0, 31, -1; setp.eq.s32 %p1, %r4, 0; @%p1 bra $L2;
        st.global.u32 [%rd1+1024], %r4; $L2:",
        None,
    ),
    (
        "a shuffle of some lanes that others pass by",
        32,
        "setp.lt.u32 %p1, %r1, 8; @%p1 shfl.sync.idx.b32 %r4, %r1, 3, 31, 255; bar.warp.sync -1;",
        None,
    ),
    (
        "a branch on what nobody has written",
        1,
        "ld.shared.u32 %r4, [%r2]; setp.eq.s32 %p1, %r4, 0; @%p1 bra $L1; $L1:",
        Some("depends on what nobody has written"),
    ),
    (
        "a place that nobody has written",
        1,
        "ld.global.u64 %rd3, [%rd1+128]; add.s64 %rd3, %rd3, %rd1; ld.global.u32 %r4, [%rd3];",
        Some("an address that depends on what nobody has written"),
    ),
    (
        "an entry of a table that nobody has chosen",
        1,
        "ld.shared.u32 %r4, [%r2]; and.b32 %r4, %r4, 7; mul.wide.u32 %rd3, %r4, 4;
        mov.u64 %rd4, table; add.s64 %rd3, %rd3, %rd4; ld.global.u32 %r5, [%rd3];",
        None,
    ),
    (
        "an entry of a table or of the next that nobody has chosen",
        1,
        "ld.shared.u32 %r4, [%r2]; and.b32 %r4, %r4, 15; mul.wide.u32 %rd3, %r4, 4;
        mov.u64 %rd4, table; add.s64 %rd3, %rd3, %rd4; ld.global.u32 %r5, [%rd3];",
        Some("an address that depends on what nobody has written"),
    ),
    (
        "the use of an entry that nobody has chosen",
        1,
        "ld.shared.u32 %r4, [%r2]; and.b32 %r4, %r4, 7; mul.wide.u32 %rd3, %r4, 4;
        mov.u64 %rd4, table; add.s64 %rd3, %rd3, %rd4; ld.global.u32 %r5, [%rd3];
        setp.eq.s32 %p1, %r5, 0; @%p1 bra $L1; $L1:",
        Some("depends on what nobody has written"),
    ),
    (
        "the last entry of a table",
        1,
        "mov.u64 %rd4, table; ld.global.u32 %r4, [%rd4+28]; setp.ne.s32 %p1, %r4, 8;
        @%p1 st.global.u32 [%rd1+1024], %r4;",
        None,
    ),
    (
        "behind the end of the constants",
        1,
        "mov.u64 %rd4, next; ld.global.u32 %r4, [%rd4+32];",
        Some("outside of what was allocated, in constants"),
    ),
    (
        "what nobody has written, and is not used",
        1,
        "ld.shared.u32 %r4, [%r2]; and.b32 %r5, %r4, 0; setp.eq.s32 %p1, %r5, 0; @%p1 bra $L1;
        selp.b32 %r5, %r4, %r1, %p1; add.s32 %r5, %r5, %r4; $L1:",
        None,
    ),
    (
        "the written byte of a word",
        1,
        "st.shared.u8 [1], %r1; ld.shared.u32 %r4, [0]; shr.u32 %r4, %r4, 8; and.b32 %r4, %r4, 255;
        setp.eq.s32 %p1, %r4, 0; @%p1 bra $L1; $L1:",
        None,
    ),
    (
        "a byte beside the written one",
        1,
        "st.shared.u8 [1], %r1; ld.shared.u32 %r4, [0]; prmt.b32 %r4, %r4, 0, 17442;
        setp.eq.s32 %p1, %r4, 0; @%p1 bra $L1; $L1:",
        Some("depends on what nobody has written"),
    ),
    (
        "a copy that is waited for",
        2,
        "shl.b32 %r4, %r1, 4; cvt.u64.u32 %rd3, %r4; add.s64 %rd3, %rd3, %rd1;
        cp.async.cg.shared.global [%r4], [%rd3], 16; cp.async.commit_group; cp.async.wait_group 0;
        bar.sync 0; xor.b32 %r4, %r4, 16; ld.shared.u32 %r5, [%r4];
        setp.eq.s32 %p1, %r5, 16843009; @%p1 bra $L1; st.global.u32 [%rd1+1024], %r5; $L1:",
        None,
    ),
    (
        "a copy that its thread alone has waited for",
        2,
        "shl.b32 %r4, %r1, 4; cp.async.cg.shared.global [%r4], [%rd1], 16; cp.async.commit_group;
        cp.async.wait_group 0; xor.b32 %r4, %r4, 16; ld.shared.u32 %r5, [%r4];",
        Some("another thread has written"),
    ),
    (
        "a copy of the group that may be late",
        1,
        "cp.async.cg.shared.global [0], [%rd1], 16; cp.async.commit_group;
        cp.async.cg.shared.global [16], [%rd1], 16; cp.async.commit_group;
        cp.async.wait_group 1; ld.shared.u32 %r5, [0]; ld.shared.u32 %r5, [16];",
        Some("ld.shared.u32 %r5, [16]: where a copy is under way"),
    ),
    (
        "a word for each block",
        1,
        "mul.wide.u32 %rd3, %r3, 4; add.s64 %rd3, %rd3, %rd1; ld.global.u32 %r4, [%rd3];
        st.global.u32 [%rd3], %r4;",
        None,
    ),
    (
        "one word for all blocks",
        1,
        "st.global.u32 [%rd1], %r1;",
        Some("another thread has written"),
    ),
    (
        "a word that another block reads",
        1,
        "ld.global.u32 %r4, [%rd1]; setp.eq.s32 %p1, %r3, 0; @%p1 st.global.u32 [%rd1], %r4;",
        Some("another thread has"),
    ),
];

#[test]
fn the_interpreter_finds_every_planted_fault() {
    for &(name, n_thread, body, expected) in KERNELS {
        for order in [Order::Rising, Order::Falling] {
            let found = found(body, n_thread, order);
            let is_right = match (&found, expected) {
                (None, None) => true,
                (Some(found), Some(words)) => found.contains(words),
                _ => false,
            };
            assert!(is_right, "{name}, {order:?}: {found:?}");
        }
    }
}

#[test]
fn instructions_do_what_they_are_defined_to() {
    let make = |name: &str, operands: [u64; 4]| {
        let operands = operands.map(|operand| [operand; WARP]);
        let map = arithmetic(name).unwrap_or_else(|| panic!("{name}"));
        map(operands.each_ref())[7]
    };
    let bits = |x: f32| u64::from(x.to_bits());
    let nan = 0x7fff_ffff;
    for (name, operands, expected) in [
        (
            "prmt.b32",
            [0x8091_a2b3, 0x0708_0900, 0x7360, 0],
            0x0780_08b3,
        ),
        (
            "prmt.b32",
            [0x8091_a2b3, 0x0708_0900, 0xc8b4, 0],
            0x00ff_ff00,
        ),
        ("bfi.b32", [0xabcd, 0xffff_ffff, 4, 8], 0xffff_fcdf),
        (
            "shf.r.wrap.b32",
            [0x89ab_cdef, 0x0123_4567, 36, 0],
            0x789a_bcde,
        ),
        ("shl.b32", [1, 32, 0, 0], 0),
        ("shr.s32", [0x8000_0000, 40, 0, 0], 0xffff_ffff),
        (
            "mul.wide.u32",
            [0xffff_ffff, 0xffff_ffff, 0, 0],
            0xffff_fffe_0000_0001,
        ),
        ("dp2a.lo.u32.u32", [0x0003_0102, 0xffff_0504, 9, 0], 1056),
        ("mad.lo.s32", [0xffff_ffff, 3, 5, 0], 2),
        ("cvt.rzi.s32.f32", [bits(-2.9), 0, 0, 0], -2i64 as u64),
        ("cvt.f32.f16", [0x0001, 0, 0, 0], bits(2f32.powi(-24))),
        ("cvt.rn.f32.s32", [16_777_217, 0, 0, 0], bits(16_777_216.0)),
        // Rounded once, with subnormal numbers.
        (
            "fma.rn.f32",
            [
                bits(1.0 + f32::EPSILON),
                bits(1.0 - f32::EPSILON),
                bits(-1.0),
                0,
            ],
            bits(-f32::EPSILON * f32::EPSILON),
        ),
        (
            "mul.rn.f32",
            [bits(f32::MIN_POSITIVE), bits(0.5), 0, 0],
            0x0040_0000,
        ),
        ("max.f32", [bits(-0.0), bits(0.0), 0, 0], bits(0.0)),
        ("max.f32", [nan, bits(-3.0), 0, 0], bits(-3.0)),
        (
            "add.rn.f32",
            [bits(f32::INFINITY), bits(f32::NEG_INFINITY), 0, 0],
            nan,
        ),
        ("setp.neu.f32", [nan, nan, 0, 0], 1),
        ("setp.gt.f32", [nan, nan, 0, 0], 0),
    ] {
        let made = make(name, operands);
        let width = if name.contains("wide") { 64 } else { 32 };
        let low = u64::MAX >> (64 - width);
        assert_eq!(made & low, expected & low, "{name} {operands:x?}");
    }
}

/// Elements of a product are at the (row, column) positions that the PTX ISA tables define.
#[test]
fn tensor_core_fragments_have_the_defined_layout() {
    let byte = |row: usize, at: usize| (row * 31 + at * 7) as u8 as i8;
    let word = |row: usize, at: usize| {
        u64::from(u32::from_le_bytes(std::array::from_fn(|i| {
            byte(row, at + i) as u8
        })))
    };
    let of = |f: &dyn Fn(usize, usize) -> u64| -> [u64; WARP] {
        std::array::from_fn(|lane| f(lane / 4, lane % 4 * 4))
    };
    let a = [
        of(&|g, at| word(g, at)),
        of(&|g, at| word(g + 8, at)),
        of(&|g, at| word(g, at + 16)),
        of(&|g, at| word(g + 8, at + 16)),
    ];
    let b = [
        of(&|g, at| word(g + 100, at)),
        of(&|g, at| word(g + 100, at + 16)),
    ];
    for depth in [16, 32] {
        let n = depth / 16;
        let made = products(
            &a.iter().take(2 * n).collect::<Vec<_>>(),
            &b.iter().take(n).collect::<Vec<_>>(),
        );
        let places = [(0, 0), (0, 1), (8, 0), (8, 1)];
        for (made, (row, column)) in made.iter().zip(places) {
            for (lane, &made) in made.iter().enumerate() {
                let (row, column) = (lane / 4 + row, lane % 4 * 2 + column + 100);
                let products =
                    (0..depth).map(|k| i32::from(byte(row, k)) * i32::from(byte(column, k)));
                assert_eq!(made as u32 as i32, products.sum::<i32>());
            }
        }
    }
}
