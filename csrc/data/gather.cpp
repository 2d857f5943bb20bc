// A batch's tokens, from mapped files into int64 rows.
//
// A sample's place leads through the shuffle index, the sample index and the document index to pieces of documents; each
// is widened from its stored type into the row. Bytes moved a token: its 1 to 8 read, 8 written; the floor is that at the
// memory's rate, or the storage's where the file is cold. Every number that comes out of a file is held against the
// length of the array that it points into: a damaged file is refused, never read beyond.

#include <algorithm>
#include <cstdint>

#include "mapped.h"

namespace {

// Columns of `gather`'s table, one row a source: addresses, and how many of what lies there.
enum Column {
    tokens_at, token_count, token_code,
    lengths_at, pointers_at, sequence_count,
    documents_at, document_count, document_bytes,
    samples_at, sample_count, sample_bytes,
    shuffle_at, shuffle_bytes,
    columns
};

struct Range {
    int64_t smallest = INT64_MAX;
    int64_t largest = INT64_MIN;
};

const uint8_t* address(int64_t number) { return reinterpret_cast<const uint8_t*>(number); }

int64_t index_at(int64_t array, int64_t bytes, int64_t index) {
    return bytes == 8 ? number_at<int64_t>(address(array), index)
                      : static_cast<int64_t>(number_at<uint32_t>(address(array), index));
}

// Megatron's numbers of token types.
int64_t bytes_of(int64_t code) {
    switch (code) {
        case 1:
        case 2:
            return 1;
        case 3:
        case 8:
            return 2;
        case 4:
            return 4;
        default:
            return 8;
    }
}

template <typename Token>
void widen(const uint8_t* bytes, int64_t count, int64_t* out, Range& range) {
    // Files are mapped at pages and pieces begin at whole tokens: it is aligned.
    const auto* tokens = reinterpret_cast<const Token*>(bytes);
    Token smallest = tokens[0], largest = tokens[0];
    for (int64_t one = 0; one < count; ++one) {
        smallest = std::min(smallest, tokens[one]);
        largest = std::max(largest, tokens[one]);
    }
    for (int64_t one = 0; one < count; ++one) {
        out[one] = static_cast<int64_t>(tokens[one]);
    }
    range.smallest = std::min(range.smallest, static_cast<int64_t>(smallest));
    range.largest = std::max(range.largest, static_cast<int64_t>(largest));
}

void widen(int64_t code, const uint8_t* bytes, int64_t count, int64_t* out, Range& range) {
    switch (code) {
        case 1:
            return widen<uint8_t>(bytes, count, out, range);
        case 2:
            return widen<int8_t>(bytes, count, out, range);
        case 3:
            return widen<int16_t>(bytes, count, out, range);
        case 4:
            return widen<int32_t>(bytes, count, out, range);
        case 8:
            return widen<uint16_t>(bytes, count, out, range);
        default:
            return widen<int64_t>(bytes, count, out, range);
    }
}

bool is_below(int64_t index, int64_t count) { return index >= 0 && index < count; }

// False where any index points out of its array.
bool gather_row(const int64_t* source, int64_t place, int64_t missing, int64_t* out, Range& range) {
    if (!is_below(place, source[sample_count])) {
        return false;
    }
    const int64_t sample = index_at(source[shuffle_at], source[shuffle_bytes], place);
    if (!is_below(sample, source[sample_count])) {
        return false;
    }
    int64_t position = index_at(source[samples_at], source[sample_bytes], 2 * sample);
    int64_t start = index_at(source[samples_at], source[sample_bytes], 2 * sample + 1);
    const int64_t token_bytes = bytes_of(source[token_code]);
    for (; missing > 0; ++position, start = 0) {
        if (!is_below(position, source[document_count])) {
            return false;
        }
        const int64_t sequence = index_at(source[documents_at], source[document_bytes], position);
        if (!is_below(sequence, source[sequence_count])) {
            return false;
        }
        const int64_t length = number_at<int32_t>(address(source[lengths_at]), sequence);
        const int64_t pointer = number_at<int64_t>(address(source[pointers_at]), sequence);
        const int64_t count = std::min(length - start, missing);
        const int64_t before = pointer / token_bytes;
        if (start < 0 || count < 0 || pointer < 0 || pointer % token_bytes || before > source[token_count] ||
            start + count > source[token_count] - before) {
            return false;
        }
        if (count > 0) {
            widen(source[token_code], address(source[tokens_at]) + pointer + start * token_bytes, count, out, range);
        }
        out += count;
        missing -= count;
    }
    return true;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int64_t gather_columns() { return columns; }

// sources: [rows], each a row of `columns` numbers. places: [rows]. out: [rows, row_tokens]. smallest_and_largest: [2],
// of all tokens. Returns how many rows were filled: the first that leads out of its source's arrays ends it.
int64_t gather(
    const int64_t* const* sources, const int64_t* places, int64_t rows, int64_t row_tokens, int64_t* out,
    int64_t* smallest_and_largest) {
    Range range;
    int64_t row = 0;
    while (row < rows && gather_row(sources[row], places[row], row_tokens, out + row * row_tokens, range)) {
        ++row;
    }
    smallest_and_largest[0] = range.smallest;
    smallest_and_largest[1] = range.largest;
    return row;
}
}
#pragma GCC visibility pop
