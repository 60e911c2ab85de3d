// Whether our declaration of a function of another library's header passes and returns the same.
//
// Our types have names of our own, so that no header of NVIDIA is needed to build: enums are ints,
// handles are pointers to structs that nobody defines.
#ifndef RESHARD_NATIVE_TESTS_HEADERS_SAME_CALL_H_
#define RESHARD_NATIVE_TESTS_HEADERS_SAME_CALL_H_

#include <type_traits>

namespace reshard_test {

template <typename Type, typename = void>
struct IsComplete : std::false_type {};
template <typename Type>
struct IsComplete<Type, std::void_t<decltype(sizeof(Type))>> : std::true_type {};

template <typename Ours, typename Theirs>
constexpr bool is_same_value() {
  if constexpr (std::is_same_v<Ours, Theirs>) {
    return true;
  } else if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    using Our = std::remove_pointer_t<Ours>;
    using Their = std::remove_pointer_t<Theirs>;
    if constexpr (std::is_const_v<Our> != std::is_const_v<Their>) {
      return false;
    } else if constexpr (std::is_void_v<Our> || std::is_void_v<Their>) {
      return std::is_void_v<Our> && std::is_void_v<Their>;
    } else if constexpr (!IsComplete<Our>::value || !IsComplete<Their>::value) {
      return !IsComplete<Our>::value && !IsComplete<Their>::value;  // two handles
    } else if constexpr (std::is_class_v<Our> && std::is_class_v<Their>) {
      return true;  // their members are compared one by one
    } else {
      return is_same_value<std::remove_const_t<Our>, std::remove_const_t<Their>>();
    }
  } else if constexpr (std::is_class_v<Ours> && std::is_class_v<Theirs>) {
    return sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs) &&
           std::is_trivially_copyable_v<Ours> && std::is_trivially_copyable_v<Theirs>;
  } else if constexpr (std::is_integral_v<Ours> && std::is_enum_v<Theirs>) {
    return sizeof(Ours) == sizeof(Theirs);
  } else if constexpr (std::is_integral_v<Ours> && std::is_integral_v<Theirs>) {
    return sizeof(Ours) == sizeof(Theirs) && std::is_signed_v<Ours> == std::is_signed_v<Theirs>;
  } else {
    return false;
  }
}

template <typename Ours, typename Theirs>
struct IsSameCall : std::false_type {};
template <typename OurResult, typename... Ours, typename TheirResult, typename... Theirs>
struct IsSameCall<OurResult (*)(Ours...), TheirResult (*)(Theirs...)> {
  static constexpr bool compare() {
    if constexpr (sizeof...(Ours) != sizeof...(Theirs)) {
      return false;
    } else {
      return is_same_value<OurResult, TheirResult>() && (is_same_value<Ours, Theirs>() && ...);
    }
  }
  static constexpr bool value = compare();
};

static_assert(IsSameCall<int (*)(const void*), int (*)(const void*)>::value);
static_assert(!IsSameCall<int (*)(void*), int (*)(const void*)>::value);
static_assert(!IsSameCall<int (*)(int), int (*)(long)>::value);
static_assert(!IsSameCall<int (*)(int), int (*)(unsigned)>::value);
static_assert(!IsSameCall<int (*)(int), int (*)()>::value);
static_assert(!IsSameCall<int (*)(int*), int (*)(void*)>::value);
static_assert(!IsSameCall<int (*)(double), int (*)(long)>::value);

}  // namespace reshard_test

// Two fields at one place, of one size.
#define SAME_FIELD(Ours, our, Theirs, their)                          \
  static_assert(offsetof(Ours, our) == offsetof(Theirs, their) &&     \
                    sizeof(static_cast<Ours*>(nullptr)->our) ==       \
                        sizeof(static_cast<Theirs*>(nullptr)->their), \
                #Ours "::" #our)

#endif  // RESHARD_NATIVE_TESTS_HEADERS_SAME_CALL_H_
