// Texts to the stored tokens of a byte-level BPE, for `opsctl data prepare`.
//
// Computes: each document is cut into words as GPT-2's pattern does ('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+|
// ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+), each word's bytes become symbols, and of neighbouring symbols the pair that is
// listed first is merged, the leftmost of equal ones, until none is listed: what Hugging Face's tokenizers does. Which
// characters are letters, numbers and white space this file does not know: the caller tells the class of each character
// that is asked for, as the library that has to be matched classes it.
//
// Bytes moved: a text is read once, tokens are written once (about 0.5 bytes for each byte of text). The floor is not
// memory but the words: one look into a cache of words (a line of 64 bytes) for every five or six bytes of text.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <queue>
#include <vector>

namespace {

enum CharacterClass : uint8_t { unknown = 0, letter = 1, number = 2, other = 3, space = 4, asked_for = 5 };

constexpr int64_t characters = 0x110000;
constexpr int64_t longest_kept_word = 31;
constexpr int64_t most_kept_tokens = 7;
constexpr uint64_t kept_words = 1 << 17;  // 64 bytes each
constexpr uint32_t not_listed = UINT32_MAX;
// From here on a heap finds the next pair faster than a look at all of them does.
constexpr int64_t longest_scanned_word = 40;

// A word of at most 31 bytes, zeros, and its length in the last byte.
struct Key {
    uint64_t parts[4];
};

// One line of the processor's cache. An empty one has length 0, as no word has.
struct alignas(64) KeptWord {
    Key key;
    int32_t count;
    int32_t tokens[most_kept_tokens];
};

struct Merge {
    uint64_t pair;  // left symbol above, right one below; all ones where the slot is free
    uint32_t rank;
    int32_t result;
};

constexpr uint64_t free_slot = UINT64_MAX;

uint64_t mixed(uint64_t left, uint64_t right) {
    const auto product = static_cast<unsigned __int128>(left ^ 0x9E3779B97F4A7C15u) * (right ^ 0xC2B2AE3D27D4EB4Fu);
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t pair_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// The 32 bytes from `word` on are read; the texts are followed by as many.
Key key_of(const uint8_t *word, int64_t length) {
    static constexpr uint64_t all = UINT64_MAX;
    static constexpr uint64_t masks[8] = {all, all, all, all, 0, 0, 0, 0};
    Key key, mask;
    std::memcpy(&key, word, sizeof key);
    std::memcpy(&mask, reinterpret_cast<const uint8_t *>(masks) + 32 - length, sizeof mask);
    for (int part = 0; part < 4; ++part) key.parts[part] &= mask.parts[part];
    key.parts[3] |= static_cast<uint64_t>(length) << 56;
    return key;
}

bool same(const Key &one, const Key &two) {
    uint64_t differing = 0;
    for (int part = 0; part < 4; ++part) differing |= one.parts[part] ^ two.parts[part];
    return differing == 0;
}

struct Encoder {
    int32_t symbol_of_byte[256];
    std::vector<Merge> merges;
    uint64_t merge_mask;
    std::vector<uint8_t> classes;
    std::vector<KeptWord> kept;
    std::vector<uint32_t> asked;
    // Of the word at work: its symbols, and the rank of each with the one after it.
    std::vector<int32_t> symbols, next, previous;
    std::vector<uint32_t> ranks;

    const Merge &merge_of(int32_t left, int32_t right) const {
        const uint64_t pair = pair_of(left, right);
        uint64_t slot = mixed(pair, pair) & merge_mask;
        while (merges[slot].pair != pair && merges[slot].pair != free_slot) slot = (slot + 1) & merge_mask;
        return merges[slot];
    }

    // The word's tokens are then the first so many of `symbols`.
    int64_t merge_by_scanning(int64_t count) {
        for (int64_t at = 0; at + 1 < count; ++at) ranks[at] = merge_of(symbols[at], symbols[at + 1]).rank;
        while (count > 1) {
            const auto best = std::min_element(ranks.begin(), ranks.begin() + count - 1);  // the leftmost
            if (*best == not_listed) break;
            const int64_t at = best - ranks.begin();
            symbols[at] = merge_of(symbols[at], symbols[at + 1]).result;
            std::copy(symbols.begin() + at + 2, symbols.begin() + count, symbols.begin() + at + 1);
            std::copy(ranks.begin() + at + 1, ranks.begin() + count - 1, ranks.begin() + at);
            --count;
            if (at > 0) ranks[at - 1] = merge_of(symbols[at - 1], symbols[at]).rank;
            if (at + 1 < count) ranks[at] = merge_of(symbols[at], symbols[at + 1]).rank;
        }
        return count;
    }

    // The same for long words: a chain of symbols, and a heap of what could be merged, (rank, place) each.
    int64_t merge_by_heap(int64_t count) {
        using Candidate = std::pair<uint32_t, int64_t>;
        std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
        const auto consider = [&](int64_t at) {
            ranks[at] = next[at] < count ? merge_of(symbols[at], symbols[next[at]]).rank : not_listed;
            if (ranks[at] != not_listed) candidates.emplace(ranks[at], at);
        };
        for (int64_t at = 0; at < count; ++at) {
            next[at] = static_cast<int32_t>(at + 1);
            previous[at] = static_cast<int32_t>(at - 1);
        }
        for (int64_t at = 0; at < count; ++at) consider(at);
        while (!candidates.empty()) {
            const auto [rank, at] = candidates.top();
            candidates.pop();
            if (ranks[at] != rank) continue;  // merged away, or with another neighbour since
            const int64_t gone = next[at];
            symbols[at] = merge_of(symbols[at], symbols[gone]).result;
            ranks[gone] = not_listed;
            next[at] = next[gone];
            if (next[at] < count) previous[next[at]] = static_cast<int32_t>(at);
            consider(at);
            if (previous[at] >= 0) consider(previous[at]);
        }
        int64_t tokens = 0;
        for (int64_t at = 0; at < count; at = next[at]) symbols[tokens++] = symbols[at];
        return tokens;
    }

    int64_t merge_word(const uint8_t *word, int64_t length) {
        if (static_cast<int64_t>(symbols.size()) < length) {
            for (auto *one : {&symbols, &next, &previous}) one->resize(length);
            ranks.resize(length);
        }
        for (int64_t at = 0; at < length; ++at) symbols[at] = symbol_of_byte[word[at]];
        return length <= longest_scanned_word ? merge_by_scanning(length) : merge_by_heap(length);
    }

    template <typename Token>
    Token *encode_word(const uint8_t *word, int64_t length, Token *tokens) {
        if (length > longest_kept_word) {
            const int64_t count = merge_word(word, length);
            for (int64_t at = 0; at < count; ++at) tokens[at] = static_cast<Token>(symbols[at]);
            return tokens + count;
        }
        const Key key = key_of(word, length);
        const uint64_t hash = mixed(key.parts[0] ^ key.parts[2] << 1, key.parts[1] + key.parts[3]);
        // Two places for each word; what is asked for again stays in the first.
        KeptWord *first = &kept[hash & (kept_words - 1)], *second = &kept[(hash & (kept_words - 1)) ^ 1];
        if (!same(first->key, key)) {
            if (same(second->key, key)) {
                std::swap(*first, *second);
            } else {
                const int64_t count = merge_word(word, length);
                if (count > most_kept_tokens) {
                    for (int64_t at = 0; at < count; ++at) tokens[at] = static_cast<Token>(symbols[at]);
                    return tokens + count;
                }
                *second = *first;
                first->key = key;
                first->count = static_cast<int32_t>(count);
                std::copy(symbols.begin(), symbols.begin() + count, first->tokens);
            }
        }
        for (int64_t at = 0; at < first->count; ++at) tokens[at] = static_cast<Token>(first->tokens[at]);
        return tokens + first->count;
    }

    // The class of the character at `at`, and how many bytes it has. The text is UTF-8; `end` is not read.
    CharacterClass class_at(const uint8_t *at, const uint8_t *end, int64_t &length) {
        uint32_t character = *at;
        length = 1;
        if (character >= 0x80) {
            length = character >= 0xF0 ? 4 : character >= 0xE0 ? 3 : 2;
            length = std::min<int64_t>(length, end - at);
            character &= 0x7F >> length;
            for (int64_t byte = 1; byte < length; ++byte) character = character << 6 | (at[byte] & 0x3F);
            character = std::min<uint32_t>(character, characters - 1);
        }
        uint8_t &found = classes[character];
        if (found == unknown) {
            asked.push_back(character);
            found = asked_for;
        }
        return static_cast<CharacterClass>(found);
    }

    // The end of the run of characters of `wanted`, from `at` on.
    const uint8_t *run_of(CharacterClass wanted, const uint8_t *at, const uint8_t *end) {
        int64_t length;
        while (at < end && class_at(at, end, length) == wanted) at += length;
        return at;
    }

    // The end of the word that begins at `at`.
    const uint8_t *word_end(const uint8_t *at, const uint8_t *end) {
        if (*at == '\'') {
            const int64_t left = end - at;
            if (left > 1 && (at[1] == 's' || at[1] == 't' || at[1] == 'm' || at[1] == 'd')) return at + 2;
            if (left > 2 && ((at[1] == 'r' && at[2] == 'e') || (at[1] == 'v' && at[2] == 'e'))) return at + 3;
            if (left > 2 && at[1] == 'l' && at[2] == 'l') return at + 3;
        }
        int64_t length;
        const uint8_t *start = at;
        CharacterClass first = class_at(at, end, length);
        if (*at == ' ' && at + 1 < end) {
            const CharacterClass after = class_at(at + 1, end, length);
            if (after != space) {
                first = after;
                start = at + 1;
            }
        }
        if (first != space) return run_of(first, start + length, end);
        // White space up to the end of the text is one word; else its last character belongs to what follows, or is one.
        const uint8_t *last = at;
        while (at < end && class_at(at, end, length) == space) {
            last = at;
            at += length;
        }
        return at == end || last == start ? at : last;
    }

    template <typename Token>
    int64_t encode(const uint8_t *texts, const int64_t *ends, int64_t documents, int64_t end_token, Token *tokens,
                   int32_t *lengths) {
        Token *const begin = tokens;
        const uint8_t *at = texts;
        for (int64_t document = 0; document < documents; ++document) {
            const uint8_t *const end = texts + ends[document];
            Token *const first = tokens;
            while (at < end) {
                const uint8_t *const stop = word_end(at, end);
                tokens = encode_word(at, stop - at, tokens);
                at = stop;
            }
            if (end_token >= 0) *tokens++ = static_cast<Token>(end_token);
            lengths[document] = static_cast<int32_t>(tokens - first);
        }
        return tokens - begin;
    }
};

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// symbol_of_byte: [256]. left, right, result: [merges], the first the one that is merged first; no pair twice.
// Null where there is no memory. To be freed by prepare_encoder_free.
void *prepare_encoder_new(const int32_t *symbol_of_byte, const int32_t *left, const int32_t *right,
                          const int32_t *result, int64_t merges) try {
    auto *encoder = new Encoder();
    try {
        std::copy(symbol_of_byte, symbol_of_byte + 256, encoder->symbol_of_byte);
        uint64_t slots = 16;
        while (slots < 2 * static_cast<uint64_t>(merges)) slots *= 2;
        encoder->merges.assign(slots, {free_slot, not_listed, 0});
        encoder->merge_mask = slots - 1;
        for (int64_t rank = 0; rank < merges; ++rank) {
            const uint64_t pair = pair_of(left[rank], right[rank]);
            uint64_t slot = mixed(pair, pair) & encoder->merge_mask;
            while (encoder->merges[slot].pair != free_slot) slot = (slot + 1) & encoder->merge_mask;
            encoder->merges[slot] = {pair, static_cast<uint32_t>(rank), result[rank]};
        }
        encoder->classes.assign(characters, unknown);
        encoder->kept.assign(kept_words, KeptWord{});
    } catch (...) {
        delete encoder;
        return nullptr;
    }
    return encoder;
} catch (...) {
    return nullptr;
}

void prepare_encoder_free(void *encoder) { delete static_cast<Encoder *>(encoder); }

// Tells the classes of characters: 1 letter, 2 number, 3 none of these, 4 white space.
void prepare_encoder_classes(void *encoder, const uint32_t *which, const uint8_t *classes, int64_t count) {
    for (int64_t at = 0; at < count; ++at) static_cast<Encoder *>(encoder)->classes[which[at]] = classes[at];
}

// texts: UTF-8, one document after the other, and 32 bytes more that may be read. ends: [documents], where each ends.
// end_token: after each document, none where negative. tokens: room for as many as there are bytes and documents, of
// token_bytes (2 or 4) each. lengths: [documents], tokens of each, the end among them.
// Returns how many tokens there are; -1 without memory; -2 where classes are missing: get them from
// prepare_encoder_asked, set them, and call this again.
int64_t prepare_encode(void *encoder, const uint8_t *texts, const int64_t *ends, int64_t documents, int64_t end_token,
                       int64_t token_bytes, void *tokens, int32_t *lengths) try {
    auto *own = static_cast<Encoder *>(encoder);
    own->asked.clear();
    const int64_t count = token_bytes == 2 ? own->encode(texts, ends, documents, end_token,
                                                         static_cast<uint16_t *>(tokens), lengths)
                                           : own->encode(texts, ends, documents, end_token,
                                                         static_cast<int32_t *>(tokens), lengths);
    return own->asked.empty() ? count : -2;
} catch (...) {
    return -1;
}

// The characters whose class is missing, `most` at most, each once. Returns how many there are.
int64_t prepare_encoder_asked(void *encoder, uint32_t *which, int64_t most) {
    const auto &asked = static_cast<Encoder *>(encoder)->asked;
    const int64_t count = static_cast<int64_t>(asked.size());
    std::copy(asked.begin(), asked.begin() + std::min(count, most), which);
    return count;
}

}  // extern "C"
#pragma GCC visibility pop
