// Random bits from a counter: Philox 4x32 with ten rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3").
//
// Every element's bits depend only on the call's seed, the operator's number and the element's place, so that any
// thread may compute any of them, in any order, any number of times.
#pragma once

#include <cstdint>

namespace precast {

// Words are kept in 64 bits each: vector units multiply these.
inline int64_t random_bits(int64_t seed, int64_t number, int64_t place) {
    constexpr uint64_t word = 0xffffffffu;
    uint64_t a = static_cast<uint64_t>(place) & word, b = static_cast<uint64_t>(place) >> 32;
    uint64_t c = static_cast<uint64_t>(number) & word, d = static_cast<uint64_t>(number) >> 32;
    uint64_t first_key = static_cast<uint64_t>(seed) & word, second_key = static_cast<uint64_t>(seed) >> 32;
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
        const uint64_t left = a * 0xD2511F53u, right = c * 0xCD9E8D57u;
        a = (right >> 32) ^ b ^ first_key;
        b = right & word;
        c = (left >> 32) ^ d ^ second_key;
        d = left & word;
        first_key = (first_key + 0x9E3779B9u) & word;
        second_key = (second_key + 0xBB67AE85u) & word;
    }
    return static_cast<int64_t>(a | (b << 32));
}

}  // namespace precast
