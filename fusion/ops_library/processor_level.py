"""Which level of the x86-64 psABI the processor has, in LLVM's textual IR.

The levels are those of the System V ABI (AMD64), chapter 3.1.1; the bits are those of CPUID and
XCR0, Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2A (CPUID) and 1 (13.3).
"""

from __future__ import annotations


def _mask(*bits: int) -> int:
    """The number with these bits, as a signed one of 32 bits."""
    number = sum(1 << bit for bit in bits)
    return number - (1 << 32) if number >> 31 else number


#: Of leaf 1, in ECX.
_SSE3, _SSSE3, _FMA, _CX16, _SSE4_1, _SSE4_2, _MOVBE, _POPCNT = 0, 9, 12, 13, 19, 20, 22, 23
_OSXSAVE, _AVX, _F16C = 27, 28, 29
#: Of leaf 7, in EBX.
_BMI1, _AVX2, _BMI2, _AVX512F, _AVX512DQ = 3, 5, 8, 16, 17
_AVX512CD, _AVX512BW, _AVX512VL = 28, 30, 31
#: Of leaf 0x80000001, in ECX.
_LZCNT = 5
#: Of XCR0: what the system keeps of threads.
_SSE_STATE, _AVX_STATE, _AVX512_STATE = 1, 2, (5, 6, 7)

_MASKS = {
    "V2": _mask(_SSE3, _SSSE3, _CX16, _SSE4_1, _SSE4_2, _POPCNT),
    "V3": _mask(_FMA, _MOVBE, _OSXSAVE, _AVX, _F16C),
    "V3_7": _mask(_BMI1, _AVX2, _BMI2),
    "V3_EXTENDED": _mask(_LZCNT),
    "V4_7": _mask(_AVX512F, _AVX512DQ, _AVX512CD, _AVX512BW, _AVX512VL),
    "AVX_STATE": _mask(_SSE_STATE, _AVX_STATE),
    "AVX512_STATE": _mask(_SSE_STATE, _AVX_STATE, *_AVX512_STATE),
}


def processor_level() -> str:
    """IR of the function of this name, which gives 2, 3 or 4, and 1 for a processor with less."""
    return _LEVEL.format_map(_MASKS)


_LEVEL = """
define internal {{ i32, i32, i32, i32 }} @cpuid(i32 %leaf) {{
  %found = call {{ i32, i32, i32, i32 }} asm sideeffect "cpuid",
    "={{ax}},={{bx}},={{cx}},={{dx}},{{ax}},{{cx}},~{{dirflag}},~{{fpsr}},~{{flags}}"
    (i32 %leaf, i32 0)
  ret {{ i32, i32, i32, i32 }} %found
}}

define internal i64 @processor_level() {{
entry:
  %first = call {{ i32, i32, i32, i32 }} @cpuid(i32 0)
  %most = extractvalue {{ i32, i32, i32, i32 }} %first, 0
  %one = call {{ i32, i32, i32, i32 }} @cpuid(i32 1)
  %one.c = extractvalue {{ i32, i32, i32, i32 }} %one, 2
  ; SSE3, SSSE3, CX16, SSE4.1, SSE4.2, POPCNT
  %has.2 = and i32 %one.c, {V2}
  %is.2 = icmp eq i32 %has.2, {V2}
  ; FMA, MOVBE, OSXSAVE, AVX, F16C
  %has.3 = and i32 %one.c, {V3}
  %may.3 = icmp eq i32 %has.3, {V3}
  %reaches.7 = icmp uge i32 %most, 7
  %may.3.or.4 = and i1 %may.3, %reaches.7
  %low = select i1 %is.2, i64 2, i64 1
  %goes.on = and i1 %is.2, %may.3.or.4
  br i1 %goes.on, label %further, label %done
further:
  %seven = call {{ i32, i32, i32, i32 }} @cpuid(i32 7)
  %seven.b = extractvalue {{ i32, i32, i32, i32 }} %seven, 1
  %extended = call {{ i32, i32, i32, i32 }} @cpuid(i32 -2147483647)
  %extended.c = extractvalue {{ i32, i32, i32, i32 }} %extended, 2
  %state = call {{ i32, i32 }} asm sideeffect "xgetbv", "={{ax}},={{dx}},{{cx}}"(i32 0)
  %kept = extractvalue {{ i32, i32 }} %state, 0
  ; BMI1, AVX2, BMI2; LZCNT; the registers of SSE and AVX
  %has.avx2 = and i32 %seven.b, {V3_7}
  %is.avx2 = icmp eq i32 %has.avx2, {V3_7}
  %has.lzcnt = and i32 %extended.c, {V3_EXTENDED}
  %is.lzcnt = icmp eq i32 %has.lzcnt, {V3_EXTENDED}
  %keeps.avx = and i32 %kept, {AVX_STATE}
  %is.kept.avx = icmp eq i32 %keeps.avx, {AVX_STATE}
  %some.3 = and i1 %is.avx2, %is.lzcnt
  %is.3 = and i1 %some.3, %is.kept.avx
  ; AVX512F, AVX512DQ, AVX512CD, AVX512BW, AVX512VL; their registers
  %has.4 = and i32 %seven.b, {V4_7}
  %is.avx512 = icmp eq i32 %has.4, {V4_7}
  %keeps.4 = and i32 %kept, {AVX512_STATE}
  %is.kept.4 = icmp eq i32 %keeps.4, {AVX512_STATE}
  %some.4 = and i1 %is.avx512, %is.kept.4
  %is.4 = and i1 %is.3, %some.4
  %high = select i1 %is.4, i64 4, i64 3
  %further.level = select i1 %is.3, i64 %high, i64 2
  br label %done
done:
  %level = phi i64 [ %low, %entry ], [ %further.level, %further ]
  ret i64 %level
}}
"""
