//! Checks for the instructions of the CPU that runs this code. The build script contains them, too: without the feature
//! `every-cpu`, kernels are compiled for the CPU that compiles them.

/// Checks for AVX2 with FMA and F16C.
pub(crate) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

/// Checks for AVX-VNNI, and for AVX2 with FMA and F16C.
pub(crate) fn has_avxvnni() -> bool {
    has_avx2() && is_x86_feature_detected!("avxvnni")
}

/// Checks for AVX-512 F, BW, DQ, VL and VNNI, and for AVX2 with FMA and F16C.
pub(crate) fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
}

/// Returns the names of the instruction sets of this CPU, best first.
pub(crate) fn supported() -> Vec<&'static str> {
    let all = [
        ("avx512", has_avx512()),
        ("avxvnni", has_avxvnni()),
        ("avx2", has_avx2()),
    ];
    let supported = all.into_iter().filter(|(_, has)| *has);
    supported.map(|(name, _)| name).collect()
}
