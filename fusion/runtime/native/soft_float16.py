"""Conversions of float16 for processors without the instructions for them (F16C).

There LLVM calls functions of these names from the compiler's library, which compiled code is not
linked with. They do as the instructions do: results are rounded to the nearest, ties to even; NaNs
become quiet and keep the upper bits of their payload. Numbers that are subnormal in float16 are
converted by way of normal ones of float32, since threads of TensorFlow treat subnormals as zero.
"""

from __future__ import annotations

#: In LLVM's textual IR.
CONVERSIONS = """
define float @__extendhfsf2(half %half) noinline {
  %short = bitcast half %half to i16
  %bits = zext i16 %short to i32
  %sign.low = and i32 %bits, 32768
  %sign = shl i32 %sign.low, 16
  %rest = and i32 %bits, 32767
  %fraction = and i32 %bits, 1023
  %shifted = shl i32 %rest, 13
  %normal = add i32 %shifted, 939524096
  %number = uitofp i32 %fraction to float
  %tiny = fmul float %number, 0x3E70000000000000
  %tiny.bits = bitcast float %tiny to i32
  %infinite = or i32 %shifted, 2139095040
  %quiet = or i32 %infinite, 4194304
  %is.tiny = icmp ult i32 %rest, 1024
  %is.infinite = icmp uge i32 %rest, 31744
  %is.nan = icmp ugt i32 %rest, 31744
  %finite = select i1 %is.tiny, i32 %tiny.bits, i32 %normal
  %special = select i1 %is.nan, i32 %quiet, i32 %infinite
  %magnitude = select i1 %is.infinite, i32 %special, i32 %finite
  %signed = or i32 %magnitude, %sign
  %result = bitcast i32 %signed to float
  ret float %result
}

define half @__truncsfhf2(float %number) noinline {
  %bits = bitcast float %number to i32
  %sign.high = lshr i32 %bits, 16
  %sign = and i32 %sign.high, 32768
  %rest = and i32 %bits, 2147483647
  %truncated = lshr i32 %rest, 13
  %odd = and i32 %truncated, 1
  %rebased = sub i32 %rest, 939520001
  %rounded = add i32 %rebased, %odd
  %normal = lshr i32 %rounded, 13
  %positive = bitcast i32 %rest to float
  %aligned = fadd float %positive, 5.000000e-01
  %aligned.bits = bitcast float %aligned to i32
  %tiny = sub i32 %aligned.bits, 1056964608
  %payload = and i32 %truncated, 1023
  %nan = or i32 %payload, 32256
  %is.tiny = icmp ult i32 %rest, 947912704
  %is.large = icmp uge i32 %rest, 1199566848
  %is.nan = icmp ugt i32 %rest, 2139095040
  %finite = select i1 %is.tiny, i32 %tiny, i32 %normal
  %special = select i1 %is.nan, i32 %nan, i32 31744
  %magnitude = select i1 %is.large, i32 %special, i32 %finite
  %signed = or i32 %magnitude, %sign
  %short = trunc i32 %signed to i16
  %result = bitcast i16 %short to half
  ret half %result
}
"""
