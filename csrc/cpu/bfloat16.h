// bfloat16 as the upper 16 bits of an fp32 number.

#pragma once

#include <cstdint>
#include <cstring>

struct BFloat16 {
    uint16_t bits;
};

inline float as_float(float number) { return number; }

inline float as_float(BFloat16 number) {
    const uint32_t bits = static_cast<uint32_t>(number.bits) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
}

// To the nearest, ties to even; what is no number stays none.
inline BFloat16 rounded(float number) {
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    const uint32_t nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40u;
    return {static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : nearest)};
}
