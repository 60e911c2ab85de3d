// Loads and stores of 1, 2, 4, 8 and 16 bytes at once, aligned to their size.
#ifndef RESHARD_NATIVE_KERNELS_MEMORY_ACCESS_H_
#define RESHARD_NATIVE_KERNELS_MEMORY_ACCESS_H_

#include <cstdint>

#if !defined(__CUDACC__)
#include <atomic>
#include <cstring>
#endif

// In front of a loop whose body is long and whose speed does not matter.
#if defined(__CUDACC__)
#define RESHARD_NO_UNROLL _Pragma("unroll 1")
#else
#define RESHARD_NO_UNROLL
#endif

namespace reshard::kernels {

struct alignas(16) Word16 {
  std::uint64_t low;
  std::uint64_t high;
};

template <int size>
struct WordOfSize;
template <>
struct WordOfSize<1> {
  using Type = std::uint8_t;
};
template <>
struct WordOfSize<2> {
  using Type = std::uint16_t;
};
template <>
struct WordOfSize<4> {
  using Type = std::uint32_t;
};
template <>
struct WordOfSize<8> {
  using Type = std::uint64_t;
};
template <>
struct WordOfSize<16> {
  using Type = Word16;
};

template <int size>
using Word = typename WordOfSize<size>::Type;

inline std::uint32_t low_bits(const std::uint8_t* address) {
  return static_cast<std::uint32_t>(reinterpret_cast<std::uint64_t>(address)) & 15U;
}

#if defined(__CUDACC__)

// The addresses come out of a table, so the compiler has to be told that none is of shared memory.
template <int size>
Word<size> load(const std::uint8_t* address) {
  __builtin_assume(__isGlobal(address));
  return *reinterpret_cast<const Word<size>*>(address);
}

template <int size>
void store(std::uint8_t* address, Word<size> word) {
  __builtin_assume(__isGlobal(address));
  *reinterpret_cast<Word<size>*>(address) = word;
}

template <int size>
Word<size> load_shared(const std::uint8_t* address) {
  return *reinterpret_cast<const Word<size>*>(address);
}

template <int size>
void store_shared(std::uint8_t* address, Word<size> word) {
  *reinterpret_cast<Word<size>*>(address) = word;
}

#else

// Accesses so far that a device would have refused, because the address was not aligned.
inline std::atomic<std::uint64_t>& misaligned_accesses() {
  static std::atomic<std::uint64_t> count{0};
  return count;
}

template <int size>
Word<size> load(const std::uint8_t* address) {
  if (reinterpret_cast<std::uintptr_t>(address) % size != 0) ++misaligned_accesses();
  Word<size> word;
  std::memcpy(&word, address, size);
  return word;
}

template <int size>
void store(std::uint8_t* address, Word<size> word) {
  if (reinterpret_cast<std::uintptr_t>(address) % size != 0) ++misaligned_accesses();
  std::memcpy(address, &word, size);
}

template <int size>
Word<size> load_shared(const std::uint8_t* address) {
  return load<size>(address);
}

template <int size>
void store_shared(std::uint8_t* address, Word<size> word) {
  store<size>(address, word);
}

#endif

// Bytes [i * part, (i + 1) * part) of a word of `size` bytes, and the word made of such parts.
template <int size, int part>
Word<part> part_of(const Word<size>& word, int i) {
  if constexpr (size == part) {
    return word;
  } else if constexpr (size == 16) {
    constexpr int per_half = 8 / part;
    return part_of<8, part>(i < per_half ? word.low : word.high, i % per_half);
  } else {
    return static_cast<Word<part>>(word >> (8 * part * i));
  }
}

template <int size, int part>
void set_part(Word<size>& word, int i, Word<part> value) {
  if constexpr (size == part) {
    word = value;
  } else if constexpr (size == 16) {
    constexpr int per_half = 8 / part;
    std::uint64_t bits = 0;
    set_part<8, part>(bits, i % per_half, value);
    word.low |= i < per_half ? bits : 0;
    word.high |= i < per_half ? 0 : bits;
  } else {  // parts are set once, into zeros
    word = static_cast<Word<size>>(word | (static_cast<Word<size>>(value) << (8 * part * i)));
  }
}

// An element at any address.
template <int size>
Word<size> load_element(const std::uint8_t* address, bool is_aligned) {
  if (is_aligned) return load<size>(address);
  Word<size> word = {};
  RESHARD_NO_UNROLL
  for (int i = 0; i < size; ++i) set_part<size, 1>(word, i, load<1>(address + i));
  return word;
}

template <int size>
void store_element(std::uint8_t* address, Word<size> word, bool is_aligned) {
  if (is_aligned) return store<size>(address, word);
  RESHARD_NO_UNROLL
  for (int i = 0; i < size; ++i) store<1>(address + i, part_of<size, 1>(word, i));
}

// An element of 1, 2, 4 or 8 bytes in the low bits.
inline std::uint64_t load_bits(const std::uint8_t* address, std::uint32_t width, bool is_aligned) {
  if (width == 1) return load<1>(address);
  if (width == 2) return load_element<2>(address, is_aligned);
  if (width == 4) return load_element<4>(address, is_aligned);
  return load_element<8>(address, is_aligned);
}

inline void store_bits(std::uint8_t* address, std::uint64_t bits, std::uint32_t width,
                       bool is_aligned) {
  if (width == 1) return store<1>(address, static_cast<std::uint8_t>(bits));
  if (width == 2) return store_element<2>(address, static_cast<std::uint16_t>(bits), is_aligned);
  if (width == 4) return store_element<4>(address, static_cast<std::uint32_t>(bits), is_aligned);
  store_element<8>(address, bits, is_aligned);
}

}  // namespace reshard::kernels

#endif  // RESHARD_NATIVE_KERNELS_MEMORY_ACCESS_H_
