// Which tokens make which sample: numpy's shuffle and the sample index.
//
// shuffle         numpy's RandomState.shuffle bit for bit: Fisher and Yates from the end, each target drawn from MT19937
//                 by masking and rejecting, as numpy's legacy generator does. Each step touches one place anywhere in
//                 the array, so the floor is what the memory does of such touches: targets are drawn a batch ahead and
//                 asked for, and while they come the batch before is swapped.
// sample_index    where token k * S lies, for every k: one pass over the documents in their order. 4 bytes from anywhere
//                 of a length's array a document (asked for ahead), 8 or 16 bytes written a sample.
//
// Indices are 32 bits wide where that holds them, 64 where not; numpy and Megatron choose the same.

#include <algorithm>
#include <cstdint>

#include "mapped.h"

namespace {

constexpr int64_t state_words = 624;
constexpr int64_t shift_words = 397;
// Targets drawn ahead: half a first-level cache of lines.
constexpr int64_t batch = 128;
constexpr int64_t documents_ahead = 64;

// MT19937, from a state as numpy keeps it: 624 words, and how many of them are used up.
class Twister {
public:
    Twister(uint32_t* key, int64_t* position) : key_(key), position_(position) { temper(); }

    // Targets in [0, step] for step = first, first - 1, ... of `count` steps that all have the mask `mask`.
    void draw(uint64_t first, int64_t count, uint32_t mask, uint32_t* targets) {
        int64_t drawn = 0;
        const auto step = static_cast<uint32_t>(first);
        while (drawn < count) {
            const int64_t from = advance(count - drawn);
            for (int64_t word = from; word < *position_; ++word) {
                const uint32_t value = tempered_[word] & mask;
                // Written whether it is taken or not: to branch on that would be guessed wrong every third time.
                targets[drawn] = value;
                drawn += value <= step - static_cast<uint32_t>(drawn);
            }
        }
    }

    // The same where a step takes 64 bits: the high word comes first.
    void draw(uint64_t first, int64_t count, uint64_t mask, uint64_t* targets) {
        for (int64_t drawn = 0; drawn < count; ++drawn) {
            do {
                const uint64_t high = word();
                targets[drawn] = (high << 32 | word()) & mask;
            } while (targets[drawn] > first - static_cast<uint64_t>(drawn));
        }
    }

private:
    // Takes up to `most` words that lie together; returns the first, *position_ is behind the last.
    int64_t advance(int64_t most) {
        if (*position_ >= state_words) {
            twist();
            temper();
            *position_ = 0;
        }
        const int64_t from = *position_;
        *position_ = std::min(state_words, from + most);
        return from;
    }

    uint32_t word() { return tempered_[advance(1)]; }

    static uint32_t mixed(uint32_t high, uint32_t low) {
        const uint32_t joined = (high & 0x80000000u) | (low & 0x7fffffffu);
        return joined >> 1 ^ (-(low & 1u) & 0x9908b0dfu);
    }

    void twist() {
        int64_t word = 0;
        for (; word < state_words - shift_words; ++word) {
            key_[word] = key_[word + shift_words] ^ mixed(key_[word], key_[word + 1]);
        }
        for (; word < state_words - 1; ++word) {
            key_[word] = key_[word + shift_words - state_words] ^ mixed(key_[word], key_[word + 1]);
        }
        key_[word] = key_[shift_words - 1] ^ mixed(key_[word], key_[0]);
    }

    void temper() {
        for (int64_t word = 0; word < state_words; ++word) {
            uint32_t value = key_[word];
            value ^= value >> 11;
            value ^= value << 7 & 0x9d2c5680u;
            value ^= value << 15 & 0xefc60000u;
            tempered_[word] = value ^ value >> 18;
        }
    }

    uint32_t* key_;
    int64_t* position_;
    uint32_t tempered_[state_words];
};

// The steps from `step` down that share its mask, up to a batch of them.
int64_t steps_of_one_mask(uint64_t step, uint64_t mask) {
    return static_cast<int64_t>(std::min<uint64_t>(batch, step - (mask >> 1)));
}

uint64_t mask_of(uint64_t step) { return ~uint64_t{0} >> __builtin_clzll(step); }

// Draws the targets of steps from `step` down to `last`, a batch at a time, and gives each batch to `take(step, count,
// targets)` when the one behind it has been drawn and shown to `ahead(count, targets)`.
template <typename Target, typename Ahead, typename Take>
void in_batches(Twister& twister, uint64_t step, uint64_t last, Ahead ahead, Take take) {
    Target targets[2][batch];
    uint64_t held_step = 0;
    int64_t held = 0;
    int turn = 0;
    while (step >= last) {
        const uint64_t mask = mask_of(step);
        const int64_t count = std::min(steps_of_one_mask(step, mask), static_cast<int64_t>(step - last + 1));
        twister.draw(step, count, static_cast<Target>(mask), targets[turn]);
        ahead(count, targets[turn]);
        take(held_step, held, targets[1 - turn]);
        held_step = step;
        held = count;
        step -= static_cast<uint64_t>(count);
        turn = 1 - turn;
    }
    take(held_step, held, targets[1 - turn]);
}

constexpr uint64_t most_in_32_bits = 0xffffffffu;

template <typename Ahead, typename Take>
void in_batches_of_any_width(Twister& twister, uint64_t first, uint64_t last, Ahead ahead, Take take) {
    if (first > most_in_32_bits) {
        in_batches<uint64_t>(twister, first, std::max(last, most_in_32_bits + 1), ahead, take);
    }
    if (last <= most_in_32_bits) {
        in_batches<uint32_t>(twister, std::min(first, most_in_32_bits), last, ahead, take);
    }
}

template <typename Index>
void shuffle(Index* values, int64_t count, uint32_t* key, int64_t* position) {
    if (count < 2) {
        return;
    }
    Twister twister(key, position);
    in_batches_of_any_width(
        twister, static_cast<uint64_t>(count) - 1, 1,
        [values](int64_t many, const auto* targets) {
            for (int64_t one = 0; one < many; ++one) {
                __builtin_prefetch(values + targets[one], 1);
            }
        },
        [values](uint64_t step, int64_t many, const auto* targets) {
            for (int64_t one = 0; one < many; ++one) {
                std::swap(values[step - static_cast<uint64_t>(one)], values[targets[one]]);
            }
        });
}

// Returns how many of the `samples` + 1 rows were found: fewer when the documents end before.
template <typename Document, typename Place>
int64_t sample_index(
    const uint8_t* lengths, const Document* documents, int64_t document_count, int64_t samples,
    int64_t sequence_length, Place* rows) {
    // Megatron starts at the first document even when it is empty.
    rows[0] = 0;
    rows[1] = 0;
    int64_t found = 1, end = 0, boundary = sequence_length;
    for (int64_t position = 0; position < document_count && found <= samples; ++position) {
        const int64_t later = std::min(position + documents_ahead, document_count - 1);
        __builtin_prefetch(lengths + 4 * static_cast<int64_t>(documents[later]));
        const int64_t start = end;
        end += number_at<int32_t>(lengths, documents[position]);
        for (; boundary < end && found <= samples; ++found, boundary += sequence_length) {
            rows[2 * found] = static_cast<Place>(position);
            rows[2 * found + 1] = static_cast<Place>(boundary - start);
        }
    }
    return found;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// values: [count], shuffled in place. key: 624 words, position: 0 to 624; both are as numpy would leave them.
void shuffle_32(uint32_t* values, int64_t count, uint32_t* key, int64_t* position) {
    shuffle(values, count, key, position);
}

void shuffle_64(uint64_t* values, int64_t count, uint32_t* key, int64_t* position) {
    shuffle(values, count, key, position);
}

// targets: [first - last + 1], what steps first, first - 1, ..., last of a shuffle are swapped with; last >= 1.
void shuffle_targets(uint64_t first, uint64_t last, uint32_t* key, int64_t* position, uint64_t* targets) {
    Twister twister(key, position);
    in_batches_of_any_width(
        twister, first, last, [](int64_t, const auto*) {},
        [first, targets](uint64_t step, int64_t many, const auto* drawn) {
            std::copy(drawn, drawn + many, targets + (first - step));
        });
}

// lengths: [sequences] int32, not aligned. documents: [document_count], each below `sequences`. rows: [samples + 1, 2].
int64_t sample_index_32_32(
    const uint8_t* lengths, const int32_t* documents, int64_t document_count, int64_t samples,
    int64_t sequence_length, int32_t* rows) {
    return sample_index(lengths, documents, document_count, samples, sequence_length, rows);
}

int64_t sample_index_32_64(
    const uint8_t* lengths, const int32_t* documents, int64_t document_count, int64_t samples,
    int64_t sequence_length, int64_t* rows) {
    return sample_index(lengths, documents, document_count, samples, sequence_length, rows);
}

int64_t sample_index_64_32(
    const uint8_t* lengths, const int64_t* documents, int64_t document_count, int64_t samples,
    int64_t sequence_length, int32_t* rows) {
    return sample_index(lengths, documents, document_count, samples, sequence_length, rows);
}

int64_t sample_index_64_64(
    const uint8_t* lengths, const int64_t* documents, int64_t document_count, int64_t samples,
    int64_t sequence_length, int64_t* rows) {
    return sample_index(lengths, documents, document_count, samples, sequence_length, rows);
}
}
#pragma GCC visibility pop
