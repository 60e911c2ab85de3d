// What the processor offers beyond its baseline, found out once at run time.
#ifndef RESHARD_NATIVE_SRC_CPU_FEATURES_H_
#define RESHARD_NATIVE_SRC_CPU_FEATURES_H_

#include <string>

namespace reshard {

struct CpuFeatures {
  bool avx2;  // with AVX state enabled by the operating system
  bool f16c;
};

// The features in use: those of the processor, less what restrict_cpu_features took away.
CpuFeatures cpu_features();

// Lets tests run the plain paths on any machine. A feature the processor lacks stays off. Call it
// only while no kernel runs.
void restrict_cpu_features(CpuFeatures allowed);

// For version reports: "avx2 f16c", or "baseline" when there is none.
std::string describe_cpu_features();

}  // namespace reshard

#endif  // RESHARD_NATIVE_SRC_CPU_FEATURES_H_
