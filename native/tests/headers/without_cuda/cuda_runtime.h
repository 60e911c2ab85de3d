// What nccl.h needs of CUDA's run-time header, whose parts are in several large packages.
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
