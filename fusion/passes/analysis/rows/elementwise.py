"""Ops of which each element of the result is made of the elements at its place."""

from __future__ import annotations

UNARY = frozenset(
    {"Identity", "StopGradient", "PreventGradient", "Snapshot", "CheckNumerics", "EnsureShape"}
    | {"Abs", "Neg", "Sign", "Square", "Sqrt", "Rsqrt", "Reciprocal", "Inv", "Exp", "Expm1", "Log"}
    | {"Log1p", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh", "Asinh"}
    | {"Acosh", "Atanh", "Sigmoid", "Erf", "Erfc", "Erfinv", "Ndtri", "Lgamma", "Digamma"}
    | {"Floor", "Ceil", "Round", "Rint", "IsNan", "IsInf", "IsFinite", "LogicalNot", "Invert"}
    | {"Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Softplus", "Softsign", "Cast", "Bitcast"}
    | {"ZerosLike", "OnesLike", "Bucketize", "AsString", "StringToNumber", "StringLength"}
    | {"StringToHashBucketFast", "StringToHashBucketStrong", "StringToHashBucket"}
    | {"StringLower", "StringUpper", "StringStrip", "StaticRegexReplace", "StaticRegexFullMatch"}
    | {"DecodeBase64", "EncodeBase64", "Real", "Imag", "ComplexAbs"}
)

BROADCAST = frozenset(
    {"Add", "AddV2", "Sub", "Mul", "Div", "RealDiv", "DivNoNan", "MulNoNan", "FloorDiv"}
    | {"TruncateDiv", "FloorMod", "Mod", "TruncateMod", "Pow", "Maximum", "Minimum"}
    | {"SquaredDifference", "Xdivy", "Xlogy", "Xlog1py", "Atan2"}
    | {"Less", "LessEqual", "Greater", "GreaterEqual", "Equal", "NotEqual"}
    | {"LogicalAnd", "LogicalOr", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "LeftShift"}
    | {"RightShift", "SelectV2", "ClipByValue", "NextAfter"}
)

#: Of tensors of one shape.
ALIKE = frozenset({"AddN", "AccumulateNV2", "ApproximateEqual", "StringJoin"})

#: What integers that follow from sizes of tensors are computed by.
OF_SIZES = frozenset(
    {"Identity", "Cast", "Pack", "ConcatV2", "StridedSlice", "Slice", "Prod", "Sum", "Max", "Min"}
    | {"GatherV2", "ExpandDims", "Squeeze", "Reshape", "Add", "AddV2", "Sub", "Mul", "FloorDiv"}
    | {"FloorMod", "Maximum", "Minimum", "Neg", "SelectV2", "Equal", "NotEqual", "Less"}
    | {"LessEqual", "Greater", "GreaterEqual", "LogicalAnd", "LogicalOr", "LogicalNot"}
    | {"BroadcastArgs", "BroadcastGradientArgs", "Unpack", "Split", "SplitV", "All", "Any"}
    | {"OnesLike", "ZerosLike", "StopGradient", "Snapshot", "TruncateDiv", "Size", "Shape", "Rank"}
    | {"IdentityN", "ShapeN", "Fill", "Select", "Range"}
)
