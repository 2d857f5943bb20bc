// Numbers in a mapped file, which need not be aligned: the header before an index's arrays has 34 bytes.

#pragma once

#include <cstdint>
#include <cstring>

template <typename Number>
Number number_at(const uint8_t* array, int64_t index) {
    Number number;
    std::memcpy(&number, array + index * static_cast<int64_t>(sizeof number), sizeof number);
    return number;
}
